"""A hosted function, killed inside iterations and inside commits, ends as the one that was not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.resume.fates import HANG, WRITING, Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import digest_of, rows_of

NUM_KILLS, KILLS_PER_RUN = 20, 7
REACH = {"hosted iteration": 5, "tick": 5, "write checkpoint": 40, "before rename": 4, "after rename": 4, "metrics": 4}
"""How many calls of a place a kill lets pass at most: a few of 24 iterations."""
RUN_FILE = """
experiment:
  seed: 3
  budget: {updates: 24}
  loop: {type: hosted, function: "tests.resume.hosted_training:train", kwargs: {hidden: 5}}
"""


@pytest.mark.slow
def test_a_function_killed_twenty_times_ends_as_one_that_was_not(tmp_path: Path) -> None:
    # Torch imports its compiler with the first optimizer, which takes longer than everything else here.
    nursery = Nursery(tmp_path, imports=["torch._dynamo"])
    (nursery.folder / "hosted.yaml").write_text(RUN_FILE)
    words = ("train", "hosted.yaml", "checkpoint.every_seconds=null", "--quiet", "--run-id")
    status, printed = nursery.run(*words, "whole")
    assert status == 0, printed
    runs, chance, struck = nursery.folder / "runs", random.Random(12), []
    expected = digest_of(runs / "whole"), rows_of(runs / "whole")
    assert len(expected[1]) == 24
    # An iteration that goes on after Ctrl-C: the user hears at once that it was noticed, and not from the next tick.
    fates = [Fate("hosted iteration", 5, "SIGINT"), Fate("tick", 3, HANG)]
    loud = (word for word in words if word != "--quiet")
    status, printed = nursery.run(*loud, "asked", "grace_seconds=0.2", fates=fates)
    assert status == 130
    noticed = "SIGINT: stopping after this iteration, or in 0.2 s (run.grace_seconds); a second Ctrl-C exits at once\n"
    assert noticed in printed.partition("exiting now")[0]
    assert nursery.run("resume", "asked", "--quiet")[0] == 0
    assert (digest_of(runs / "asked"), rows_of(runs / "asked")) == expected
    for number in range(10):
        run, command = f"killed-{number}", (*words, f"killed-{number}", f"checkpoint.every_updates={1 + number % 2}")
        for _ in range(KILLS_PER_RUN):
            place = chance.choice(list(REACH))
            status, printed = nursery.run(*command, fates=[Fate(place, chance.randint(1, REACH[place]))])
            command = ("resume", run, "--quiet")
            if status == 0:
                break
            assert status == -9, printed
            struck.append(place)
        status, printed = nursery.run(*command)
        assert status == 0, printed
        assert (digest_of(runs / run), rows_of(runs / run)) == expected, struck
        if len(struck) >= NUM_KILLS:
            break
    assert len(struck) >= NUM_KILLS
    assert len(set(struck) & set(WRITING)) >= 2
    assert {"hosted iteration", "tick"} <= set(struck)
    nursery.close()
