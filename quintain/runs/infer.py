"""Inference and evaluation with trained policies in an environment of agents, without changes to the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.data.spec import BehaviorSpec
from quintain.errors import SettingsError
from quintain.placements.local import LocalSource
from quintain.policies.base import Policy
from quintain.rollouts.agent_world import AgentWorld
from quintain.runs.assemble import assemble
from quintain.runs.output import make_writers
from quintain.runs.parts import make_policy
from quintain.runs.restore import restore_policy
from quintain.runs.run import Run
from quintain.services.checkpoints.catalog import load
from quintain.settings.agent_rules import has_agents
from quintain.trainers.base import Trainer
from quintain.trainers.settings import EvaluateSettings

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
    """Acts with the policies of a checkpoint until stopped, or for `max_steps` steps; returns the exit code."""
    run = Run(run_file, make_writers(run_file, stream, quiet=quiet), is_quiet=quiet)
    trainer = _player(run, checkpoint, is_deterministic)
    world = _world(trainer)
    run.show_header()
    run.writer.note(f"acting with {checkpoint.name}; nothing is learned or saved. Stop with Ctrl-C")
    try:
        with run.signals.watching(trainer.stop, lambda: checkpoint.name, run.writer.note):
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


def episode_limit(run_file: RunFile) -> int | None:
    """Returns the time limit of episodes in the run's own evaluation."""

    behaviors = run_file.experiment.behaviors.values()
    own = (event for behavior in behaviors for event in behavior.events if isinstance(event, EvaluateSettings))
    return next(own, EvaluateSettings()).max_episode_steps


def policy_for(run_file: RunFile, behavior: str, spec: BehaviorSpec) -> Policy:
    """Builds an untrained policy of a behaviour."""
    return make_policy(run_file, spec, behavior)


def _world(trainer: Trainer) -> AgentWorld:
    assert isinstance(trainer.source, LocalSource)
    collector = trainer.source.collector
    assert isinstance(collector, AgentWorld)
    return collector


def _player(run: Run, checkpoint: Path, is_deterministic: bool) -> Trainer:
    """Makes the trainer of the settings, acting in this thread, with the policies of a checkpoint."""
    if not has_agents(run.run_file.experiment):
        raise SettingsError("only an environment of agents can be acted in without learning; see quintain eval")
    run_file = run.run_file.replace("run.placement", {"type": "local"}).replace("experiment.env.num_collectors", 1)
    trainer = assemble(run_file, run, run.writer)
    loaded = load(checkpoint)
    trainer.require_fit(loaded.manifest.about)
    for name, collector in _world(trainer).collectors.items():
        learner = trainer.learners[name]
        restore_policy(learner.policy, loaded, name)
        # Not a copy that was made before the weights came.
        collector.policy = learner.policy
        collector.is_deterministic = is_deterministic
    return trainer
