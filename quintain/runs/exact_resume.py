"""Checks that an interrupted and resumed run is bitwise equal to one without interruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from quintain.data.differences import differences
from quintain.runs.launch import Launched, resume, start

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop
    from quintain.typing import State


def assert_resumes_exactly(run_file: RunFile, *, stop_after_steps: Sequence[int] | None = None) -> None:
    """Trains once without and once with interruptions, through checkpoints on disk, and compares all state.

    `stop_after_steps` lists the numbers of steps of all lanes after which to stop, those of evaluations included, each
    counted from the last resume; by default the run stops once, about in the middle.
    """
    stops = _middle(run_file) if stop_after_steps is None else stop_after_steps
    with TemporaryDirectory() as directory:
        runs_dir = Path(directory)
        expected = _train(start(run_file, runs_dir=runs_dir, run_id="uninterrupted", quiet=True))
        launched = start(run_file, runs_dir=runs_dir, run_id="interrupted", quiet=True)
        for num_steps in stops:
            _stop_after(launched.trainer, num_steps)
            _train(launched)
            launched = resume(runs_dir, "interrupted", run_file=run_file, quiet=True)
        found = list(differences(expected, _train(launched)))
    if found:
        listed = "\n  ".join(found[:10])
        raise AssertionError(f"the resumed run differs in {len(found)} places:\n  {listed}")


def _middle(run_file: RunFile) -> list[int]:
    num_lanes: int = run_file.experiment.env.num_lanes  # type: ignore[attr-defined]  # every env has lanes
    steps = run_file.experiment.budget.env_steps
    # Of a budget in updates only its first rollout is known to be there.
    return [1 if steps is None else steps // num_lanes // 2 + 1]


def _train(launched: Launched) -> State:
    try:
        launched.trainer.train()
        trained: State = launched.trainer.state_dict()["training"]
        return trained
    finally:
        launched.trainer.close()
        launched.run.close()


def _stop_after(trainer: Loop, num_steps: int) -> None:
    asked, is_stopping = 0, trainer.should_stop

    def should_stop() -> bool:
        nonlocal asked
        asked += 1
        if asked > num_steps and not is_stopping():
            trainer.stop("assert_resumes_exactly")
        return is_stopping()

    # The collector asks before every step, which makes this a clock that a test can set.
    trainer.should_stop = should_stop  # type: ignore[method-assign]
