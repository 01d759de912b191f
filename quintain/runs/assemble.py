"""The composition root: the only module that reads the whole settings tree and makes the parts it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import Accelerated, accelerate
from quintain.core.budget import Budget
from quintain.core.process_group import Alone, World
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data.rollout import Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.spec import BehaviorSpec
from quintain.envs.agents.factory import agent_env
from quintain.envs.base import Env
from quintain.envs.hosts.hosting import Hosting
from quintain.errors import SettingsError, SpecMismatch
from quintain.placements.local import LocalPlacement
from quintain.placements.plan import Placement
from quintain.policies.base import Policy
from quintain.rollouts.replay_place import ReplayPlace
from quintain.rollouts.source import LocalSource
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.trajectory_store import replay_rows
from quintain.runs.acting import FALLBACK, ActingPlan, env_maker, settings_of, stream_of
from quintain.runs.kernel_notes import kernel_notes
from quintain.runs.parts import connect_symmetry, load_part, make_events, make_policy, resolve_device
from quintain.services.events import EventManager
from quintain.services.reporting.stats import WINDOW_SIZE, EpisodeWindow, StatsReporter
from quintain.settings.agent_rules import has_agents
from quintain.settings.rules import keeps_replay
from quintain.trainers.base import Parts, Session, Trainer
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.events import AgentContext, EventContext
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.guard import UpdateGuard
from quintain.trainers.learner import Learner, ReadyLearner
from quintain.trainers.loop import Loop

if TYPE_CHECKING:
    from quintain.services.reporting.writers import Writer
    from quintain.settings.experiment import Behavior
    from quintain.settings.tree import RunFile
    from quintain.typing import Array, TrainingEnv


@dataclass(frozen=True)
class Slots:
    """Ready objects that take the place of what the settings would make."""

    env: Any = None
    evaluation_env: Any = None
    """What evaluation makes its environments from where `env` is one object, which training alone may step."""
    policy: Policy | None = None
    learners: Mapping[str, ReadyLearner] = field(default_factory=dict)
    """Learners by behaviour, each with a policy and an algorithm of its own."""
    make_algorithm: Callable[..., Algorithm] | None = None
    env_events: Mapping[str, Any] = field(default_factory=dict)
    """Events of the training environment, beside those of the settings."""
    evaluation_env_events: Mapping[str, Any] = field(default_factory=dict)
    writer: Any = None
    """What `trainer.writer` is to be, where a user brought one."""


def assemble(
    run_file: RunFile, session: Session, writer: Writer, slots: Slots | None = None, *, world: World | None = None
) -> Trainer:
    """Builds the trainer that the settings describe, or one rank's share of it."""
    parts = assemble_parts(run_file, session, writer, slots or Slots(), world or Alone())
    trainer: Trainer = _trainer_class(run_file, parts).from_parts(parts)
    return trainer


def _trainer_class(run_file: RunFile, parts: Parts) -> Any:
    """Returns the class that the settings name; several behaviours are trained by the one that ships."""
    chosen = {settings_of(run_file, name).trainer.type: name for name in parts.learners}
    if len(chosen) > 1:
        raise SettingsError(
            f"behaviours name different trainers ({', '.join(chosen)}), and one loop trains all of them; name one",
            code="E0253",
        )
    return load_part("trainer", settings_of(run_file, next(iter(parts.learners))).trainer)


def assemble_loop(run_file: RunFile, session: Session, writer: Writer, *, world: World) -> Loop:
    """Builds what the settings describe: a trainer, or a loop of the user's own, from its settings and a stream."""
    if run_file.experiment.loop is None:
        return assemble(run_file, session, writer, world=world)
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed)
    GlobalStreams().seed(rng.child("global").child(f"rank_{world.rank}") if world.rank else rng.child("global"))
    settings = run_file.experiment.loop
    loop: Loop = load_part("loop", settings)(settings, rng.child("loop"))
    loop.install_loop(
        progress=Progress(run_file.budget.env_steps, run_file.budget.updates),
        events=EventManager(),
        stats=StatsReporter(writer),
        session=session,
        writer=writer,
        world=world,
        faults=Hosting().faults,
    )
    return loop


def assemble_parts(run_file: RunFile, session: Session, writer: Writer, slots: Slots, world: World) -> Parts:
    """Builds, behaviour by behaviour, policy, signals, algorithm, store and learner; then the source that acts."""
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed)
    GlobalStreams().seed(rng.child("global").child(f"rank_{world.rank}") if world.rank else rng.child("global"))
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
    env = placement.env
    for note in env.notes:
        writer.note(note)
    specs = plan.specs(env)
    if plan.has_agents:
        _require_behaviors(run_file, specs, writer)
    settings: Any = run_file.experiment.env
    curriculum = Curriculum(getattr(settings, "curricula", {}))
    curriculum.require_behaviors(specs)
    policies = {name: _policy(run_file, name, spec, slots) for name, spec in specs.items()}
    learning = {name: _algorithm(run_file, name, policy, env, slots, world) for name, policy in policies.items()}
    for name, (_, accelerated) in learning.items():
        for note in kernel_notes(accelerated):
            writer.note(note if len(specs) == 1 else f"{name}: {note}")
    learners: dict[str, Learner] = {}

    def on_episodes(name: str, returns: Array, lengths: Array) -> None:
        learners[name].hear_episodes(returns, lengths)
        curriculum.hear(name, returns.tolist())

    starts_fresh = any(algorithm is not None and algorithm.starts_fresh for algorithm, _ in learning.values())
    source, blocks = placement.build_source(policies, on_episodes, starts_fresh=starts_fresh)
    for name, policy in policies.items():
        behavior, (algorithm, accelerated) = settings_of(run_file, name), learning[name]
        own_budget: int | None = getattr(behavior.rollout, "budget_env_steps", None)
        budget = run_file.budget if own_budget is None else Budget(own_budget, run_file.budget.updates)
        events = make_events(behavior, _event_context(run_file, name, slots, hosting, world, curriculum, budget))
        ready = slots.learners.get(name)
        if ready is not None and ready.has_own_blocks:
            store = ready.make_store(blocks[name])
        else:
            store = _make_store(run_file, behavior, policy, blocks[name], session, writer, world)
        if ready is not None:
            ready.connect(store, events, UpdateGuard(run_file.run), accelerated)
            learners[name] = ready
            continue
        assert algorithm is not None, "only a ready learner may have none"
        learners[name] = Learner(
            name,
            policy,
            algorithm,
            store,
            Progress(budget.env_steps, budget.updates),
            events=events,
            guard=UpdateGuard(run_file.run),
            episodes=EpisodeWindow(max(1, WINDOW_SIZE // world.size)),
            accelerated=accelerated,
            own_budget=own_budget,
        )
    return Parts(
        learners=learners,
        source=source,
        stats=StatsReporter(writer),
        session=session,
        hosting=hosting,
        writer=writer if slots.writer is None else slots.writer,
        world=world,
        curriculum=curriculum,
    )


def _policy(run_file: RunFile, name: str, spec: BehaviorSpec, slots: Slots) -> Policy:
    given = slots.learners[name].policy if name in slots.learners else slots.policy
    policy = given or make_policy(run_file, spec, name)
    if policy.spec != spec:
        raise SpecMismatch(f"the policy takes {policy.spec}, and the environment has {spec}. Use one made for it")
    return policy.to(resolve_device(run_file.run.device))


def _algorithm(
    run_file: RunFile, name: str, policy: Policy, env: TrainingEnv, slots: Slots, world: World
) -> tuple[Algorithm | None, Accelerated]:
    """Makes the algorithm of a behaviour with its reward signals, and lets kernels take over what they can.

    A learner that is ready brings its algorithm, or another way to learn.
    """
    if name in slots.learners:
        given = slots.learners[name].given_algorithm
        return given, accelerate(policy, given)
    behavior = settings_of(run_file, name)
    signals = {key: load_part("reward_signal", each)(each) for key, each in behavior.reward_signals.items()}
    make = slots.make_algorithm or load_part("algorithm", behavior.algorithm)
    algorithm: Algorithm = make(behavior.algorithm, policy, signals, stream_of(run_file, name).child("algorithm"))
    algorithm.join(world)
    policy.join(world)
    if has_agents(run_file.experiment):
        connect_symmetry(behavior.algorithm, algorithm, partial(env.mirror_of, name))
    else:
        _require_groups(run_file.experiment.env, algorithm, env)
        connect_symmetry(behavior.algorithm, algorithm, lambda: env.mirror)
    return algorithm, accelerate(policy, algorithm)


def _make_placement(run_file: RunFile, plan: ActingPlan) -> Placement:
    """Makes what decides where acting happens, and with it the environment."""
    settings = run_file.run.placement
    registered: Any = load_part("placement", settings)
    if isinstance(registered, type) and issubclass(registered, LocalSource):
        return LocalPlacement(settings, plan, registered)
    placement: Placement = registered(settings, plan)
    return placement


def _make_store(
    run_file: RunFile,
    behavior: Behavior,
    policy: Policy,
    blocks: Sequence[Rollout],
    session: Session,
    writer: Writer,
    world: World,
) -> RolloutStore:
    settings: Any = behavior.rollout
    store_class: Any = load_part("rollout", settings)
    allocate = None
    if keeps_replay(behavior):
        # On all ranks together there are as many transitions as on one.
        settings = settings.model_copy(update={"buffer_size": settings.buffer_size // world.size})
        if has_agents(run_file.experiment):
            layout, num_rows = replay_rows(policy.spec, settings, policy.state_size)
        else:
            layout, num_rows = RowLayout(policy.spec), settings.buffer_size
        place = ReplayPlace(run_file.run.replay, session.runs_dir, keeps_checkpoints=session.keeps_checkpoints)
        allocate, note = place.allocator(num_rows * layout.row_bytes, layout.row_bytes)
        if note:
            writer.note(note)
    store: RolloutStore
    if has_agents(run_file.experiment):
        store = store_class(blocks[0], settings, *blocks[1:], **({} if allocate is None else {"allocate": allocate}))
    elif allocate is not None:
        store = store_class(blocks[0], settings, allocate, more_blocks=blocks[1:])
    else:
        store = store_class(*blocks)
    return store


def _event_context(
    run_file: RunFile,
    name: str,
    slots: Slots,
    hosting: Hosting,
    world: World,
    curriculum: Curriculum,
    budget: Budget,
) -> EventContext:
    settings: Any = run_file.experiment.env
    agents = None
    if has_agents(run_file.experiment):
        agents = AgentContext(name, partial(agent_env, settings), curriculum.apply)
    return EventContext(
        _no_env if agents else env_maker(run_file, slots.evaluation_env or slots.env, hosting),
        stream_of(run_file, name),
        budget,
        world,
        env_events=slots.evaluation_env_events,
        on_nonfinite=settings.on_nonfinite,
        agents=agents,
    )


def _no_env(num_lanes: int, rng: Rng) -> Any:
    raise AssertionError("the rules refuse events that need lanes of their own")


def _require_behaviors(run_file: RunFile, found: Mapping[str, BehaviorSpec], writer: Writer) -> None:
    """Refuses behaviours of the environment without settings; tells of settings without a behaviour."""
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
    for name in known:
        if name not in found and name != FALLBACK:
            writer.note(f"note: behaviour {name} is set up, and the environment has no agents of it")


def _require_groups(settings: Any, algorithm: Algorithm, env: Env) -> None:
    """Refuses an environment that does not start lanes alike though it should; settings alone cannot tell."""
    wanted = getattr(settings, "group_size", 1)
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
