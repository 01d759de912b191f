"""Acting and evaluating with trained policies in an environment of agents: nothing of the run is changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.factory import agent_env
from quintain.envs.settings import AgentsSettings
from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.agent_evaluator import AgentEvaluator
from quintain.rollouts.agent_world import AgentWorld
from quintain.rollouts.evaluate import EpisodeResults
from quintain.runs.assemble import assemble
from quintain.runs.output import make_writers
from quintain.runs.parts import make_policy
from quintain.runs.restore import policies_of, restore_part, restore_policy
from quintain.runs.run import Run
from quintain.services.checkpoints.catalog import Loaded, load
from quintain.settings.agent_rules import has_agents
from quintain.trainers.base import Trainer
from quintain.trainers.curriculum import Curriculum
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
    """Acts with the policies of a checkpoint until it is stopped, or for `max_steps` steps; returns the exit code."""
    run = Run(run_file, [] if quiet else make_writers(run_file, stream))
    trainer = _player(run, checkpoint, is_deterministic)
    world = _world(trainer)
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


def play_agents(
    run_file: RunFile,
    loaded: Loaded,
    rng: Rng,
    *,
    num_episodes: int,
    deterministic: bool,
    limit: int | None,
    on_step: Callable[[AgentEnv, bool], None] | None,
    tell: Callable[[str], None] | None,
) -> dict[str, EpisodeResults]:
    """Plays the first `num_episodes` episodes that begin of each behaviour; those longer than `limit` are cut."""
    settings = run_file.experiment.env
    assert isinstance(settings, AgentsSettings), "the caller asked whether there are agents"
    curriculum = Curriculum(settings.curricula)
    evaluator = AgentEvaluator(agent_env(settings, rng.child("env")), rng, curriculum.apply, max_episode_steps=limit)
    try:
        policies = policies_of(loaded, partial(policy_for, run_file))
        for name, spec in evaluator.env.specs.items():
            if name not in policies or policies[name].spec != spec:
                known = "; ".join(f"{each}: {policy.spec}" for each, policy in policies.items())
                raise CheckpointIncompatible(
                    f"checkpoint is for {known}; this env has {name}: {spec}. Use the environment it was trained with"
                )
        for policy in policies.values():
            accelerate(policy)
        if curriculum.lessons:
            restore_part(curriculum, loaded, "curriculum")
        played = evaluator.play(
            policies,
            dict.fromkeys(evaluator.env.specs, num_episodes),
            deterministic=deterministic,
            should_stop=lambda: False,
            on_step=on_step,
            tell=tell,
        )
    finally:
        evaluator.close()
    assert played is not None
    return played


def episode_limit(run_file: RunFile) -> int | None:
    """Returns the steps after which the run's own evaluation cuts an episode."""

    behaviors = run_file.experiment.behaviors.values()
    own = (event for behavior in behaviors for event in behavior.events if isinstance(event, EvaluateSettings))
    return next(own, EvaluateSettings()).max_episode_steps


def policy_for(run_file: RunFile, behavior: str, spec: BehaviorSpec) -> Policy:
    """Builds an untrained policy of a behaviour."""
    return make_policy(run_file, spec, behavior)


def _world(trainer: Trainer) -> AgentWorld:
    collector = trainer.source.outpost.outpost.actor.collector  # type: ignore[attr-defined]  # it acts inline
    assert isinstance(collector, AgentWorld)
    return collector


def _player(run: Run, checkpoint: Path, is_deterministic: bool) -> Trainer:
    """Makes everything that the settings describe, acting in this thread, with the policies of a checkpoint."""
    if not has_agents(run.run_file.experiment):
        raise SettingsError("only an environment of agents can be acted in without learning; see quintain eval")
    run_file = run.run_file.replace("run.placement", {"type": "local"})
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
