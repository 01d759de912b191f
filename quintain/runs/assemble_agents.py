"""Puts together the trainers of all behaviours of an environment of agents; `assemble` leaves such runs to it."""

from __future__ import annotations

from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from quintain.compiled.plug import accelerate
from quintain.core.budget import Budget
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data.fields import gather_fields
from quintain.data.rollout import Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.factory import agent_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import AgentsSettings
from quintain.errors import SettingsError
from quintain.placements.learner_thread import LearnerThread
from quintain.placements.snapshots import copy_of
from quintain.policies.base import Policy
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.agent_source import AgentSource, AgentWorld
from quintain.rollouts.replay import replay_rows
from quintain.rollouts.replay_place import ReplayPlace
from quintain.rollouts.store import RolloutBuffer
from quintain.runs.kernel_notes import kernel_notes
from quintain.runs.parts import connect_symmetry, load_part, make_events, policy_of_behavior, resolve_device
from quintain.services.reporting.stats import EpisodeWindow, StatsReporter
from quintain.settings.rules import keeps_replay
from quintain.trainers.base import Parts, Session, Trainer
from quintain.trainers.behavior_session import BehaviorSession, SharedStats, prefix_of
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.events import AgentContext, EventContext
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.guard import UpdateGuard
from quintain.trainers.joint import JointTrainer
from quintain.trainers.threaded import InlineLearner, ThreadedTrainer

if TYPE_CHECKING:
    from quintain.services.reporting.writers import Writer
    from quintain.settings.experiment import Behavior
    from quintain.settings.tree import RunFile


FALLBACK = "default"
"""The behaviour whose settings those have that are not named."""


def assemble_agents(run_file: RunFile, session: Session, writer: Writer) -> JointTrainer:
    """Builds the environment, and a trainer for each behaviour that it has."""
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed)
    GlobalStreams().seed(rng.child("global"))
    settings: AgentsSettings = run_file.experiment.env  # type: ignore[assignment]  # the rules saw to it
    env = agent_env(settings, rng.child("env"))
    curriculum = Curriculum(settings.curricula)
    curriculum.require_behaviors(env.specs)
    if curriculum.lessons:
        curriculum.apply(env)
        env.reset()
    behaviors = _behaviors_of(run_file, env, writer)
    makers = {name: _Maker(run_file, name, each, env, session, writer) for name, each in behaviors.items()}
    trainers: dict[str, Trainer] = {}
    around = partial(
        AgentContext,
        make_env=partial(agent_env, settings),
        prepare=curriculum.apply,
        policies=lambda: {name: trainer.published_policy for name, trainer in trainers.items()},
    )
    world = AgentWorld(
        env,
        {name: maker.collector for name, maker in makers.items()},
        {name: maker.store for name, maker in makers.items()},
    )
    stats = StatsReporter(writer)
    sessions = {name: BehaviorSession(name, session) for name in makers}

    def needs(behavior: str) -> bool:
        return not trainers[behavior].is_finished

    def is_stopping() -> bool:
        return joint.should_stop() or joint.has_failed

    for name, maker in makers.items():
        shared = SharedStats(stats, prefix_of(name, len(makers)))
        for note in kernel_notes(maker.accelerated):
            writer.note(note if len(makers) == 1 else f"{name}: {note}")
        source = AgentSource(name, world, needs, is_stopping)
        parts = maker.parts(source, shared, sessions[name], writer, around(name))
        trainers[name] = maker.trainer(parts)
    own = {name: maker.own_budget for name, maker in makers.items() if maker.own_budget is not None}
    joint = JointTrainer(trainers, world, own, stats=stats, session=session, writer=writer, curriculum=curriculum)
    for each in sessions.values():
        each.joint = joint
    return joint


def behavior_policy(run_file: RunFile, name: str, spec: BehaviorSpec) -> Policy:
    """Builds an untrained policy of a behaviour."""
    known = run_file.experiment.behaviors
    rng = Rng(run_file.experiment.seed).child("behaviors").child(name)
    return policy_of_behavior(known[name if name in known else FALLBACK], spec, rng)


class _Maker:
    """Makes the parts of one behaviour, each from random streams of its own."""

    def __init__(
        self, run_file: RunFile, name: str, settings: Behavior, env: AgentEnv, session: Session, writer: Writer
    ) -> None:
        self.run_file = run_file
        self.name = name
        self.settings = settings
        self.rng = Rng(run_file.experiment.seed).child("behaviors").child(name)
        rollout: Any = settings.rollout
        self.own_budget: int | None = rollout.budget_env_steps
        self.policy = behavior_policy(run_file, name, env.specs[name])
        self.policy.to(resolve_device(run_file.run.device))
        signals = {key: load_part("reward_signal", each)(each) for key, each in settings.reward_signals.items()}
        self.algorithm = load_part("algorithm", settings.algorithm)(
            settings.algorithm, self.policy, signals, self.rng.child("algorithm")
        )
        connect_symmetry(settings.algorithm, self.algorithm, lambda: env.mirror_of(name))
        self.accelerated = accelerate(self.policy, self.algorithm)
        self.episodes = EpisodeWindow()
        self.max_staleness: int = getattr(rollout, "max_staleness", 0)
        self.acting = copy_of(self.policy) if self.max_staleness else self.policy
        trainer_class: Any = load_part("trainer", settings.trainer)
        self.trainer_class = trainer_class
        self.fields = gather_fields(
            self.policy.spec, self.policy, self.algorithm, *self.algorithm.signals.values(), trainer_class
        )
        self.collector = AgentCollector(
            self.acting,
            rollout.time_horizon,
            self.rng.child("acting"),
            self.episodes.extend,
            self.fields,
        )
        blocks = [self._block(rollout) for _ in range(1 + self.max_staleness)]
        self.store: RolloutBuffer = load_part("rollout", rollout)(
            *blocks, settings=rollout, **self._places(blocks[0], session, writer)
        )

    def _block(self, rollout: Any) -> TrajectoryBlock | SequenceBlock:
        spec, num_steps, horizon = self.policy.spec, rollout.steps_per_batch, rollout.time_horizon
        if self.policy.state_size:
            return SequenceBlock(spec, horizon, -(-num_steps // horizon), self.fields)
        return TrajectoryBlock(spec, num_steps + horizon, self.fields)

    def _places(self, block: Rollout, session: Session, writer: Writer) -> dict[str, Any]:
        """Returns what a replay memory keeps and where it lies, if there is one."""
        rollout: Any = self.settings.rollout
        if not keeps_replay(self.settings):
            return {}
        place = ReplayPlace(self.run_file.run.replay, session.runs_dir, keeps_checkpoints=session.keeps_checkpoints)
        keep = self.algorithm.minibatch_fields
        layout, num_rows = replay_rows(block, rollout, keep)
        allocate, note = place.allocator(num_rows * layout.row_bytes, layout.row_bytes)
        if note:
            writer.note(note)
        return {"keep": keep, "allocate": allocate}

    def trainer(self, parts: Parts) -> Trainer:
        """Makes the trainer, with somebody who learns beside it where there are threads."""
        is_threaded = self.run_file.run.placement.type == "threads"
        if not is_threaded and not self.max_staleness:
            made: Trainer = self.trainer_class.from_parts(parts)
            return made
        if self.settings.trainer.type != "rollout":
            raise SettingsError(
                f"a trainer of type {self.settings.trainer.type} has stages of its own, which are not learned beside "
                f"acting. Set run.placement to local and max_staleness to 0",
                code="E0253",
            )
        learner = LearnerThread(self.name) if is_threaded else InlineLearner()
        return ThreadedTrainer.beside(parts, learner, self.max_staleness, self.acting)

    def parts(
        self, source: AgentSource, stats: StatsReporter, session: Session, writer: Writer, around: AgentContext
    ) -> Parts:
        budget = self.run_file.budget
        if self.own_budget is not None:
            budget = Budget(self.own_budget, budget.updates)
        return Parts(
            policy=self.policy,
            algorithm=self.algorithm,
            source=source,
            store=self.store,
            progress=Progress(budget.env_steps, budget.updates),
            events=make_events(self.settings, EventContext(_no_env, self.rng, budget, agents=around)),
            stats=stats,
            episodes=self.episodes,
            guard=UpdateGuard(self.run_file.run),
            session=session,
            hosting=Hosting(),
            writer=writer,
            accelerated=self.accelerated,
        )


def _behaviors_of(run_file: RunFile, env: AgentEnv, writer: Writer) -> dict[str, Behavior]:
    """Returns the settings of each behaviour that the environment has."""
    known = run_file.experiment.behaviors
    for name in env.specs:
        if name not in known and FALLBACK not in known:
            near = get_close_matches(name, known, n=1)
            hint = f'; did you mean it by "{near[0]}"?' if near else ""
            raise SettingsError(
                f'the environment has agents of behaviour "{name}", and experiment.behaviors has only '
                f"{', '.join(known)}{hint}",
                code="E0227",
            )
    for name in known:
        if name not in env.specs and name != FALLBACK:
            writer.note(f"note: behaviour {name} is set up, and the environment has no agents of it")
    return {name: known[name if name in known else FALLBACK] for name in env.specs}


def _no_env(num_lanes: int, rng: Rng) -> Any:
    raise AssertionError("the rules refuse events that need an environment of their own")
