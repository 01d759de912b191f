"""Checks that a trainer's saved state is complete: a new trainer that loads it continues identically."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.core.state import Kept
from quintain.data.differences import differences
from quintain.data.rollout import Rollout
from quintain.runs.assemble import assemble
from quintain.runs.run import Run

if TYPE_CHECKING:
    from quintain.trainers.base import Trainer
    from quintain.trainers.learner import Learner

_NOT_COMPARED = frozenset({"session", "hosting", "stats", "batch", "stop_reason", "trainer", "learner_records"})
"""Attributes around the trainer, timings, and data that is taken from the store again."""


def assert_all_state_saved(trainer: Trainer, fresh: Trainer | None = None, *, num_cycles: int = 2) -> None:
    """Trains a little, loads the saved state into a new trainer, and compares every attribute of both.

    Then both take one more cycle and are compared again, because forgotten state may only show later. `fresh` is made
    from the settings of the trainer's run unless given; pass it if parts were given as objects.
    """
    other = fresh or _rebuild(trainer)
    for _ in range(num_cycles):
        trainer.advance()
    saved = trainer.state_dict()
    other.load_state_dict(saved)
    _require_equal(trainer, other, "after loading the saved state")
    trainer.advance()
    # The process-wide generators belong to both trainers, and the first has just moved them.
    other.global_streams.load_state_dict(saved["training"]["global_streams"])
    other.advance()
    _require_equal(trainer, other, "one cycle after loading the saved state")


def _rebuild(trainer: Trainer) -> Trainer:
    if not isinstance(trainer.session, Run):
        raise TypeError("this trainer has no run to take settings from; pass a fresh trainer as the second argument")
    run_file = trainer.session.run_file
    run = Run(run_file, [])
    return assemble(run_file, run, run.writer)


def _require_equal(trainer: Trainer, other: Trainer, when: str) -> None:
    found = list(differences(_attributes(trainer), _attributes(other)))
    if found:
        listed = "\n  ".join(found[:10])
        raise AssertionError(f"{len(found)} attributes differ {when}:\n  {listed}")


def _attributes(trainer: Trainer) -> dict[str, Kept]:
    compared = {name: value for name, value in vars(trainer).items() if name not in _NOT_COMPARED}
    return {**compared, "learners": {name: _attributes_of(each) for name, each in trainer.learners.items()}}


def _attributes_of(learner: Learner) -> dict[str, Kept]:
    compared = {name: value for name, value in vars(learner).items() if name not in _NOT_COMPARED}
    # The memory of blocks counts as far as it is saved: in one that was learned from, anything may stand.
    flags = {name: value for name, value in vars(learner.store).items() if not isinstance(value, Rollout)}
    return {**compared, "store": {"flags": flags, "saved": learner.store.state_dict()}}
