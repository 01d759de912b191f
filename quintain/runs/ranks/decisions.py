"""Collective decisions of ranks: when rows and checkpoints are written, and whether environments ended the run."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop


def is_report_due(run_file: RunFile, loop: Loop) -> bool:
    """Whether a row is written after this cycle."""
    progress, every_updates = loop.progress, run_file.run.report.every_updates
    if every_updates is not None:
        return progress.updates % every_updates == 0 or loop.is_finished
    rollouts = (behavior.rollout for behavior in run_file.experiment.behaviors.values())
    usual: int = getattr(type(next(rollouts, None)), "report_every_env_steps", 1)
    every_env_steps = run_file.run.report.every_env_steps or usual
    return every_env_steps == 1 or progress.crossed(every_env_steps) or loop.is_finished


def is_commit_due(run_file: RunFile, loop: Loop, seconds_since_last: float) -> bool:
    """Whether a checkpoint is committed after this cycle; rank 0 decides, for it has the clock."""
    every, progress = run_file.run.checkpoint, loop.progress
    return (
        loop.commits_after_stages
        or (every.every_env_steps is not None and progress.crossed(every.every_env_steps))
        or (every.every_updates is not None and progress.updates % every.every_updates == 0)
        or (every.every_seconds is not None and seconds_since_last >= every.every_seconds)
        or loop.records.is_new_best(progress.env_steps)
    )


def decide(world: ProcessGroup, wanted: bool) -> bool:
    """Returns the decision of rank 0."""
    return world.broadcast(b"yes" if wanted else b"no") == b"yes"


class EndElsewhere(NamedTuple):
    """The reason why another rank's environments ended the run."""

    rank: int
    message: str
    trace: str


def agree_on_end(loop: Loop) -> EndElsewhere | None:
    """Returns on rank 0 why another rank's environments ended the run, if they did; collective."""
    if loop.world.size == 1:
        return None
    faults = loop.faults
    own = ["" if faults.spent is None else faults.spent.message, "" if faults.fatal is None else faults.fatal.trace]
    said = [json.loads(data) for data in loop.world.collect(json.dumps(own).encode())]
    ends = (EndElsewhere(rank, *texts) for rank, texts in enumerate(said))
    return next((end for end in ends if end.message), None)
