"""kill -9 anywhere: exactly one job for each group and iteration, one conversation for each index, equal results."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from quintain.runs.run import Run
from quintain.services.files.line_file import LineFile
from quintain.text.providers.scripted import ScriptedProvider
from tests.text.running import in_child, killing_at, results, settings, train

PLACES = ((Run, "_commit"), (LineFile, "append"), (ScriptedProvider, "create_job"))
NUM_RANDOM = int(os.environ.get("QUINTAIN_TEXT_KILLS", "4"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert in_child(lambda: train(folder, settings())) == 0
    return results(folder)


def resume_until_done(folder: Path) -> None:
    """Starts the run if the kill came before it had a directory, else resumes it."""
    is_begun = (folder / "r" / "config.yaml").is_file()
    assert in_child(lambda: train(folder, None if is_begun else settings())) == 0


def test_an_undisturbed_run_has_four_jobs(undisturbed: dict[str, list[object]]) -> None:
    # Two groups, and three iterations make two fine-tunes.
    assert len(undisturbed["created"]) == 4
    assert len(set(map(str, undisturbed["made"]))) == 4
    talks = undisturbed["talks"]
    names = ("test-000000", "test-000002", "train-000000", "train-000001", "train-000002")
    assert sorted(talks) == [f"{name}.jsonl" for name in names]


# 1 to about 330 are the calls of the whole run; many are lines of the same kind.
@pytest.mark.parametrize("number", [1, 3, 4, 9, 50, 55, 56, 57, 58, 59, 60, 61, 62, 63, 64, 65, 66, 67, 68, 69, 70, 75])
def test_killed_at_a_boundary(number: int, tmp_path: Path, undisturbed: dict[str, object]) -> None:
    def work() -> None:
        killing_at(number, *PLACES)
        train(tmp_path, settings())

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    resume_until_done(tmp_path)
    assert results(tmp_path) == undisturbed


@pytest.mark.parametrize("seed", range(NUM_RANDOM))
def test_killed_at_a_random_moment(seed: int, tmp_path: Path, undisturbed: dict[str, object]) -> None:
    moments = random.Random(seed)
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            try:
                is_begun = (tmp_path / "r" / "config.yaml").is_file()
                train(tmp_path, None if is_begun else settings())
            finally:
                os._exit(0)
        time.sleep(moments.uniform(0.02, 1.0))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    resume_until_done(tmp_path)
    assert results(tmp_path) == undisturbed
