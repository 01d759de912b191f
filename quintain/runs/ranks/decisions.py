"""What rank 0 decides for all: when rows are written, and whether something is done now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.core.process_group import World
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop


def is_report_due(run_file: RunFile, loop: Loop) -> bool:
    """Says whether a row is written after this cycle."""
    progress, every_updates = loop.progress, run_file.run.report.every_updates
    if every_updates is not None:
        return progress.updates % every_updates == 0 or loop.is_finished
    rollouts = (behavior.rollout for behavior in run_file.experiment.behaviors.values())
    usual: int = getattr(type(next(rollouts, None)), "report_every_env_steps", 1)
    every_env_steps = run_file.run.report.every_env_steps or usual
    return every_env_steps == 1 or progress.crossed(every_env_steps) or loop.is_finished


def decide(world: World, wanted: bool) -> bool:
    """Returns what rank 0 wants."""
    return world.broadcast(b"yes" if wanted else b"no") == b"yes"
