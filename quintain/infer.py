"""Acting with trained policies in an environment of agents, without learning: nothing of the run is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import SettingsError
from quintain.restore import require_same_spec, restore_policy
from quintain.run import Run
from quintain.run_output import make_writers
from quintain.services.checkpoint_catalog import load

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile

STEPS_BETWEEN_ROWS = 1000


def infer(
    run_file: RunFile,
    checkpoint: Path,
    *,
    is_deterministic: bool = False,
    max_steps: int | None = None,
    stream: Any = None,
    quiet: bool = False,
) -> int:
    """Acts with the policies of a checkpoint until it is stopped, or for `max_steps` steps; returns the exit code."""
    from quintain.assemble import assemble
    from quintain.trainers.joint import JointTrainer

    run = Run(run_file, [] if quiet else make_writers(run_file, stream))
    trainer = assemble(run_file, run, run.writer)
    if not isinstance(trainer, JointTrainer):
        raise SettingsError("only an environment of agents can be acted in without learning; see quintain eval")
    loaded = load(checkpoint)
    require_same_spec(trainer.policy, loaded)
    restore_policy(trainer.policy, loaded)
    world = trainer.agents
    for collector in world.collectors.values():
        collector.is_deterministic = is_deterministic
    run.show_header()
    run.writer.note(f"acting with {checkpoint.name}; nothing is learned or saved. Stop with Ctrl-C")
    try:
        with run.signals.watching(trainer.stop, lambda: checkpoint.name):
            while not trainer.should_stop() and (max_steps is None or world.num_steps < max_steps):
                left = STEPS_BETWEEN_ROWS if max_steps is None else min(STEPS_BETWEEN_ROWS, max_steps - world.num_steps)
                world.play(left, trainer.should_stop)
                trainer.stats.set_all(trainer.episode_stats())
                trainer.stats.write_stats(world.num_steps)
    finally:
        run.state = "stopped"
        run.writer.close(run.summary(trainer))
        trainer.close()
        run.close()
    return run.exit_code
