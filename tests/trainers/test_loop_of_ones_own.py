"""A loop without policy and environment: run, killed, resumed and digested by the command line's own machinery."""

import pytest

from quintain.core.state import KeepsState
from quintain.trainers import Loop
from tests.resume.fates import Fate
from tests.resume.nursery import Nursery
from tests.resume.outcome import digest_of, rows_of

RUN_FILE = "experiment: {loop: {type: 'tests.trainers.test_loop_of_ones_own:Counter'}, budget: {updates: 6}}"


class Tally(KeepsState):
    def __init__(self):
        self.total, self.has_waited = 0, False


class Counter(Loop):
    stages = ("count", "rest")
    training_parts = (*Loop.training_parts, "tally")
    commits_after_stages = True

    def __init__(self, settings, rng):
        self.rng, self.tally = rng, Tally()

    def _stage_count(self):
        self.tally.total = self.tally.total * 31 % 1009 + int(self.rng.generator("x", self.tally.total).integers(999))
        return True

    def _stage_rest(self):
        had_waited, self.tally.has_waited = self.tally.has_waited, True
        return had_waited

    def report(self):
        return {"count/total": self.tally.total}


@pytest.mark.slow
def test_a_loop_that_was_killed_ends_with_the_digest_of_one_that_was_not(tmp_path):
    (tmp_path / "count.yaml").write_text(RUN_FILE)
    nursery, runs = Nursery(tmp_path), tmp_path / "runs"
    assert nursery.run("train", "count.yaml", "--run-id", "whole")[0] == 0
    # After the second stage of the fourth cycle, whose first stage was committed.
    assert nursery.run("train", "count.yaml", "--run-id", "killed", fates=[Fate("between stages", 8)])[0] == -9
    assert nursery.run("resume", "killed")[0] == 0
    assert digest_of(runs / "killed") == digest_of(runs / "whole")
    assert rows_of(runs / "killed") == rows_of(runs / "whole")
    assert len(rows_of(runs / "whole")) == 6
    assert nursery.run("checkpoints", "list", "killed")[0] == 0
    nursery.close()
