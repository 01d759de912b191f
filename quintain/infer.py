"""Acting and evaluating with trained policies in an environment of agents: nothing of the run is changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.errors import EnvError, SettingsError
from quintain.restore import require_same_spec, restore_policy
from quintain.rollouts.agent_assembler import Episodes
from quintain.rollouts.evaluate import EpisodeResults
from quintain.run import Run
from quintain.run_output import make_writers
from quintain.services.checkpoint_catalog import load
from quintain.trainers.joint import JointTrainer

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile

STEPS_BETWEEN_ROWS = 1000
MAX_EVAL_STEPS = 1_000_000
"""Steps of the environment after which an evaluation gives up on episodes that do not end."""


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
    run = Run(run_file, [] if quiet else make_writers(run_file, stream))
    trainer = _player(run, checkpoint, is_deterministic)
    world = trainer.agents
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


def evaluate_agents(
    run_file: RunFile, checkpoint: Path, *, num_episodes: int, is_deterministic: bool, seed: int | None = None
) -> dict[str, EpisodeResults]:
    """Plays the first `num_episodes` episodes that begin of each behaviour, and returns what they were like.

    Not the first that end: those would be the short ones.
    """
    from quintain.rng import Rng

    chosen = Rng(run_file.experiment.seed if seed is None else seed).seed_for("eval_command")
    run = Run(run_file.replace("experiment.seed", chosen), [])
    trainer = _player(run, checkpoint, is_deterministic)
    tallies = {name: _Tally(num_episodes) for name in trainer.agents.collectors}
    for name, collector in trainer.agents.collectors.items():
        collector.on_numbered = tallies[name].add
    try:
        while not all(tally.is_complete for tally in tallies.values()):
            if trainer.agents.num_steps >= MAX_EVAL_STEPS:
                raise EnvError(f"episodes did not end within {MAX_EVAL_STEPS} steps of the environment", code="E0511")
            trainer.agents.play(1, trainer.should_stop)
    finally:
        trainer.close()
        run.close()
    return {name: tally.results() for name, tally in tallies.items()}


class _Tally:
    """The first episodes of one behaviour."""

    def __init__(self, num_episodes: int) -> None:
        self.returns = np.zeros(num_episodes)
        self.lengths = np.zeros(num_episodes, np.int64)

    def add(self, played: Episodes) -> None:
        counts = played.numbers < len(self.returns)
        self.returns[played.numbers[counts]] = played.returns[counts]
        self.lengths[played.numbers[counts]] = played.lengths[counts]

    @property
    def is_complete(self) -> bool:
        return bool((self.lengths > 0).all())

    def results(self) -> EpisodeResults:
        return EpisodeResults(self.returns, self.lengths)


def _player(run: Run, checkpoint: Path, is_deterministic: bool) -> JointTrainer:
    """Makes everything that the settings describe, with the policies of a checkpoint."""
    from quintain.assemble import assemble

    trainer = assemble(run.run_file, run, run.writer)
    if not isinstance(trainer, JointTrainer):
        raise SettingsError("only an environment of agents can be acted in without learning; see quintain eval")
    loaded = load(checkpoint)
    require_same_spec(trainer.policy, loaded)
    restore_policy(trainer.policy, loaded)
    for name, collector in trainer.agents.collectors.items():
        # Not a copy that was made before the weights came.
        collector.policy = trainer.trainers[name].policy
        collector.is_deterministic = is_deterministic
    return trainer
