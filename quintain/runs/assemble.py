"""The composition root: the only module that reads the whole settings tree and makes the named parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import Accelerated, accelerate
from quintain.core.budget import Budget
from quintain.core.process_group import ProcessGroup, SingleProcess
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data.fields import ALL_ENDS, DeclaresFields, gather_fields
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec
from quintain.envs.base import Env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import AgentsSettings
from quintain.errors import SettingsError, SpecMismatch
from quintain.placements.local import LocalPlacement, LocalSource
from quintain.placements.plan import Placement
from quintain.policies.base import Policy
from quintain.rollouts.replay import replay_rows
from quintain.rollouts.replay_place import ReplayPlace
from quintain.rollouts.settings import FragmentSettings
from quintain.rollouts.store import RolloutStore
from quintain.runs.acting import FALLBACK, ActingPlan, settings_of, stream_of
from quintain.runs.env_maker import env_maker, make_camera
from quintain.runs.parts import connect_symmetry, load_part, make_events, make_policy, resolve_device
from quintain.services.events import EventManager
from quintain.services.reporting.stats import WINDOW_SIZE, EpisodeWindow, StatsReporter
from quintain.settings.agent_rules import has_agents
from quintain.settings.placement_rules import integer
from quintain.settings.rules import keeps_replay
from quintain.trainers.base import Parts, Session, Trainer
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.events import AgentContext, EventContext
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.guard import UpdateGuard
from quintain.trainers.learner import Learner, ReadyLearner
from quintain.trainers.loop import Loop
from quintain.trainers.parts import Hosted

if TYPE_CHECKING:
    from quintain.services.reporting.writers import Writer
    from quintain.settings.base import PartSettings
    from quintain.settings.experiment import Behavior
    from quintain.settings.tree import RunFile
    from quintain.typing import Array, TrainingEnv


@dataclass(frozen=True)
class Slots:
    """Objects that replace parts made from settings."""

    env: Any = None
    evaluation_env: Any = None
    """The factory of evaluation environments where `env` is one object, which only training may step."""
    policy: Policy | None = None
    learners: Mapping[str, ReadyLearner] = field(default_factory=dict)
    """Learners by behaviour, each with its own policy and algorithm."""
    make_algorithm: Callable[..., Algorithm] | None = None
    make_loop: Callable[..., Loop] | None = None
    """Makes the loop from its settings and a stream, where a user brought its function."""
    trainer_class: type[Trainer] | None = None
    """The trainer class of the parts, where an instance is already being made."""
    function: Callable[..., object] | None = None
    """The function of a hosted trainer."""
    env_events: Mapping[str, Any] = field(default_factory=dict)
    """Events of the training environment, in addition to those of the settings."""
    evaluation_env_events: Mapping[str, Any] = field(default_factory=dict)
    writer: Any = None
    """The user's `trainer.writer`."""


def assemble(
    run_file: RunFile,
    session: Session,
    writer: Writer,
    slots: Slots | None = None,
    *,
    world: ProcessGroup | None = None,
) -> Trainer:
    """Builds the trainer that the settings describe, or one rank's share of it."""
    parts = assemble_parts(run_file, session, writer, slots or Slots(), world or SingleProcess())
    trainer: Trainer = _trainer_class(run_file, parts.learners).from_parts(parts)
    return trainer


def _trainer_class(run_file: RunFile, behaviors: Iterable[str]) -> type[Trainer]:
    """Returns the trainer class in the settings: one loop trains all behaviours."""
    chosen = {settings_of(run_file, name).trainer.type: settings_of(run_file, name).trainer for name in behaviors}
    if len(chosen) > 1:
        raise SettingsError(
            f"behaviours name different trainers ({', '.join(chosen)}), and one loop trains all of them; name one",
            code="E0253",
        )
    [settings] = chosen.values()
    trainer_class: type[Trainer] = load_part("trainer", settings)  # type: ignore[assignment]  # trainers are classes
    return trainer_class


def assemble_loop(
    run_file: RunFile, session: Session, writer: Writer, slots: Slots | None = None, *, world: ProcessGroup
) -> Loop:
    """Builds a trainer from settings, or a user's loop from its settings and a random stream."""
    if run_file.experiment.loop is None:
        return assemble(run_file, session, writer, slots, world=world)
    rng = _prepare_process(run_file, world)
    settings = run_file.experiment.loop
    make = (slots or Slots()).make_loop or load_part("loop", settings)
    is_class = isinstance(make, type) and issubclass(make, Loop)
    loop: Loop = (make.from_settings if is_class else make)(settings, rng.child("loop"))  # type: ignore[union-attr]
    loop.install_loop(
        progress=Progress(run_file.budget.env_steps, run_file.budget.updates),
        events=EventManager(),
        stats=StatsReporter(writer),
        session=session,
        writer=writer,
        world=world,
        faults=Hosting().faults,
    )
    loop.set_budget(run_file.budget)
    return loop


def _prepare_process(run_file: RunFile, world: ProcessGroup) -> Rng:
    """Sets threads and global generators of this rank; returns the random stream of the run."""
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed)
    GlobalStreams().seed(rng.child("global").child(f"rank_{world.rank}") if world.rank else rng.child("global"))
    return rng


def assemble_parts(run_file: RunFile, session: Session, writer: Writer, slots: Slots, world: ProcessGroup) -> Parts:
    """Builds, behaviour by behaviour, policy, signals, algorithm and fields; then the source; then the learners."""
    rng = _prepare_process(run_file, world)
    hosting = Hosting.from_settings(run_file.run.env_workers)
    plan = ActingPlan(
        run_file,
        hosting,
        slot=slots.env,
        env_events=slots.env_events,
        has_own_policy=slots.policy is not None,
        learners=slots.learners,
        rank=world.rank,
        num_ranks=world.size,
    )
    placement = _make_placement(run_file, plan)
    env, specs = placement.env, plan.specs(placement.env)
    for note in (*env.notes, *(_require_behaviors(run_file, specs) if plan.has_agents else ())):
        writer.note(note)
    settings = run_file.experiment.env
    curriculum = Curriculum(settings.curricula if isinstance(settings, AgentsSettings) else {})
    curriculum.require_behaviors(specs)
    make = _Maker(run_file, session, writer, slots, world, hosting, curriculum)
    trainer_class = slots.trainer_class or _trainer_class(run_file, specs)
    policies, algorithms, accelerated = {}, {}, {}
    for name, spec in specs.items():
        policy = policies[name] = make.policy(name, spec)
        algorithm = algorithms[name] = make.algorithm(name, policy, env)
        accelerated[name] = accelerate(policy, algorithm)
        for note in accelerated[name].notes():
            writer.note(note if len(specs) == 1 else f"{name}: {note}")
        fields = gather_fields(spec, policy, *make.declaring(name, algorithm), trainer_class)
        reads_ends = plan.has_agents and algorithm is not None and algorithm.sees_next_obs
        plan.fields[name] = {**fields, **ALL_ENDS} if reads_ends else fields
    learners: dict[str, Learner] = {}

    def on_episodes(name: str, returns: Array, lengths: Array) -> None:
        learners[name].hear_episodes(returns, lengths)
        curriculum.hear(name, returns.tolist())

    starts_fresh = _starts_fresh(algorithms, has_agents=plan.has_agents)
    source, blocks = placement.build_source(policies, on_episodes, starts_fresh=starts_fresh)
    for name, policy in policies.items():
        learners[name] = make.learner(name, policy, algorithms[name], blocks[name], accelerated[name])
    return Parts(
        learners=learners,
        source=source,
        stats=StatsReporter(writer),
        session=session,
        hosting=hosting,
        writer=writer if slots.writer is None else slots.writer,
        world=world,
        curriculum=curriculum,
        hosted=Hosted(settings_of(run_file, next(iter(specs))).trainer, rng.child("loop"), slots.function),
        begins_from_policy=run_file.experiment.initialize_from is not None,
    )


def _starts_fresh(algorithms: Mapping[str, Algorithm | None], *, has_agents: bool) -> bool:
    """Whether every rollout begins with new episodes in all lanes, which agents that come and go cannot."""
    starts_fresh = any(each is not None and each.starts_fresh for each in algorithms.values())
    if starts_fresh and has_agents:
        raise SettingsError(
            "the algorithm begins every rollout with new episodes in all lanes, and agents come and go at times of "
            "their own; choose another algorithm",
            code="E0226",
        )
    return starts_fresh


@dataclass(frozen=True)
class _Maker:
    """Makes the parts of each behaviour."""

    run_file: RunFile
    session: Session
    writer: Writer
    slots: Slots
    world: ProcessGroup
    hosting: Hosting
    curriculum: Curriculum

    def policy(self, name: str, spec: BehaviorSpec) -> Policy:
        ready = self.slots.learners.get(name)
        given = self.slots.policy if ready is None else ready.policy
        policy = given or make_policy(self.run_file, spec, name)
        if policy.spec != spec:
            raise SpecMismatch(f"the policy takes {policy.spec}, and the environment has {spec}. Use one made for it")
        return policy.to(resolve_device(self.run_file.run.device, self.world.rank))

    def algorithm(self, name: str, policy: Policy, env: TrainingEnv) -> Algorithm | None:
        """Makes the algorithm of a behaviour with its reward signals.

        An existing learner has its own algorithm, or another way to learn.
        """
        if name in self.slots.learners:
            return self.slots.learners[name].given_algorithm
        behavior, rng = settings_of(self.run_file, name), stream_of(self.run_file, name).child("algorithm")
        signals = {key: load_part("reward_signal", each)(each) for key, each in behavior.reward_signals.items()}
        make = self.slots.make_algorithm or load_part("algorithm", behavior.algorithm)
        algorithm: Algorithm = make(behavior.algorithm, policy, signals, rng)
        if behavior.auxiliary_losses:
            algorithm.add_auxiliary_losses(
                {
                    key: load_part("auxiliary_loss", each)(each, policy, rng.child("auxiliary").child(key))
                    for key, each in behavior.auxiliary_losses.items()
                }
            )
        algorithm.join(self.world)
        policy.join(self.world)
        if has_agents(self.run_file.experiment):
            connect_symmetry(behavior.algorithm, algorithm, partial(env.mirror_of, name))
        else:
            _require_groups(self.run_file.experiment.env, algorithm, env)
            algorithm.group_size = env.group_size
            connect_symmetry(behavior.algorithm, algorithm, lambda: env.mirror)
        return algorithm

    def declaring(self, name: str, algorithm: Algorithm | None) -> Iterator[DeclaresFields]:
        """Yields the parts of a behaviour that declare fields, in addition to its policy."""
        if algorithm is not None:
            yield algorithm
            yield from algorithm.signals.values()
            yield from algorithm.auxiliary_losses.values()
        if name in self.slots.learners:
            yield self.slots.learners[name]

    def learner(
        self,
        name: str,
        policy: Policy,
        algorithm: Algorithm | None,
        blocks: Sequence[Rollout],
        accelerated: Accelerated,
    ) -> Learner:
        """Makes the learner of a behaviour, or gives an existing one its store, events and guard."""
        behavior, ready = settings_of(self.run_file, name), self.slots.learners.get(name)
        own_budget: int | None = getattr(behavior.rollout, "budget_env_steps", None)
        shared = self.run_file.budget
        budget = shared if own_budget is None else Budget(own_budget, shared.updates)
        events, guard = make_events(behavior, self.event_context(name, budget)), UpdateGuard(self.run_file.run)
        if ready is not None and ready.has_own_blocks:
            store = ready.make_store(blocks)
        else:
            store = self.store(behavior, blocks, () if algorithm is None else algorithm.minibatch_fields)
        if ready is not None:
            ready.connect(store, events, guard, accelerated)
            return ready
        assert algorithm is not None, "only a ready learner may have none"
        return Learner(
            name,
            policy,
            algorithm,
            store,
            Progress(budget.env_steps, budget.updates),
            events=events,
            guard=guard,
            episodes=EpisodeWindow(max(1, WINDOW_SIZE // self.world.size)),
            accelerated=accelerated,
            own_budget=own_budget,
        )

    def store(self, behavior: Behavior, blocks: Sequence[Rollout], keep: Sequence[str]) -> RolloutStore:
        """Makes the store of a behaviour; a replay buffer keeps these fields with each step."""
        settings: Any = behavior.rollout
        make: Callable[..., RolloutStore] = load_part("rollout", settings)
        if isinstance(settings, FragmentSettings):
            rng = Rng(self.run_file.experiment.seed).child("fragments").child(f"rank_{self.world.rank}")
            return make(*blocks, settings=settings, rng=rng)
        if not keeps_replay(behavior):
            return make(*blocks, settings=settings)
        # On all ranks together there are as many transitions as on one.
        settings = settings.model_copy(update={"buffer_size": settings.buffer_size // self.world.size})
        session = self.session
        place = ReplayPlace(self.run_file.run.replay, session.runs_dir, keeps_checkpoints=session.keeps_checkpoints)
        layout, num_rows = replay_rows(blocks[0], settings, keep)
        allocate, note = place.allocator(num_rows * layout.row_bytes, layout.row_bytes)
        if note:
            self.writer.note(note)
        return make(*blocks, settings=settings, keep=keep, allocate=allocate)

    def event_context(self, name: str, budget: Budget) -> EventContext:
        settings: Any = self.run_file.experiment.env
        agents = None
        if has_agents(self.run_file.experiment):
            agents = AgentContext(name, partial(load_part("env", settings), settings), self.curriculum.apply)
        slot = self.slots.evaluation_env or self.slots.env
        return EventContext(
            _no_env if agents else env_maker(self.run_file, slot, self.hosting),
            stream_of(self.run_file, name),
            budget,
            self.world,
            env_events=self.slots.evaluation_env_events,
            on_nonfinite=settings.on_nonfinite,
            make_camera=partial(make_camera, self.run_file, slot),
            agents=agents,
        )


def _make_placement(run_file: RunFile, plan: ActingPlan) -> Placement:
    """Makes the placement, and with it the environment."""
    settings = run_file.run.placement
    registered: Any = load_part("placement", settings)
    if isinstance(registered, type) and issubclass(registered, LocalSource):
        return LocalPlacement(settings, plan, registered)
    placement: Placement = registered(settings, plan)
    return placement


def _no_env(num_lanes: int, rng: Rng) -> Any:
    raise AssertionError("the rules refuse events that need lanes of their own")


def _require_behaviors(run_file: RunFile, found: Mapping[str, BehaviorSpec]) -> list[str]:
    """Refuses behaviours of the environment without settings; returns notes on settings without a behaviour."""
    known = run_file.experiment.behaviors
    for name in found:
        if name not in known and FALLBACK not in known:
            near = get_close_matches(name, known, n=1)
            hint = f'; did you mean it by "{near[0]}"?' if near else ""
            raise SettingsError(
                f'the environment has agents of behaviour "{name}", and experiment.behaviors has only '
                f"{', '.join(known)}{hint}",
                code="E0227",
            )
    return [
        f"note: behaviour {name} is set up, and the environment has no agents of it"
        for name in known
        if name not in found and name != FALLBACK
    ]


def _require_groups(settings: PartSettings, algorithm: Algorithm, env: Env) -> None:
    """Refuses an environment that does not start groups of lanes alike; settings alone cannot tell."""
    wanted = integer(settings, "group_size") or 1
    if wanted > 1 and env.group_size != wanted:
        raise SettingsError(
            f"experiment.env.group_size is {wanted}, but this environment does not start lanes alike", code="E0219"
        )
    if algorithm.needs_groups and env.group_size < 2:
        raise SettingsError(
            "the algorithm compares lanes that start alike, and this environment has no groups of them; set "
            "experiment.env.group_size to 2 or more",
            code="E0219",
        )
    if env.num_lanes % env.group_size:
        raise SettingsError(
            f"{env.num_lanes} lanes cannot be split into groups of {env.group_size}; experiment.env.group_size must "
            f"divide num_lanes",
            code="E0219",
        )
