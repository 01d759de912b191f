"""The composition root: the only module that reads the whole settings tree and makes the parts it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from quintain.algorithms.base import Algorithm
from quintain.compiled.plug import accelerate
from quintain.core.process_group import Alone, World
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data.fields import gather_fields
from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.envs.hosts.hosting import Hosting
from quintain.errors import SettingsError, SpecMismatch
from quintain.placements.local import LocalPlacement
from quintain.placements.plan import Placement
from quintain.policies.base import Policy
from quintain.rollouts.replay import replay_rows
from quintain.rollouts.replay_place import ReplayPlace
from quintain.rollouts.settings import ReplaySettings
from quintain.rollouts.source import LocalSource
from quintain.rollouts.store import RolloutStore
from quintain.runs.acting import ActingPlan, behavior_of, env_maker
from quintain.runs.kernel_notes import kernel_notes
from quintain.runs.parts import connect_symmetry, load_part, make_events, make_policy, resolve_device
from quintain.services.events import EventManager
from quintain.services.reporting.stats import WINDOW_SIZE, EpisodeWindow, StatsReporter
from quintain.settings.agent_rules import has_agents
from quintain.trainers.base import Parts, Session, Trainer
from quintain.trainers.events import EventContext
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.guard import UpdateGuard
from quintain.trainers.loop import Loop

if TYPE_CHECKING:
    from quintain.services.reporting.writers import Writer
    from quintain.settings.tree import RunFile


@dataclass(frozen=True)
class Slots:
    """Ready objects that take the place of what the settings would make."""

    env: Any = None
    evaluation_env: Any = None
    """What evaluation makes its environments from where `env` is one object, which training alone may step."""
    policy: Policy | None = None
    make_algorithm: Callable[..., Algorithm] | None = None
    trainer_class: type[Trainer] | None = None
    """The class of the trainer that the parts are for, where it is being made already."""
    env_events: Mapping[str, Any] = field(default_factory=dict)
    """Events of the training environment, beside those of the settings."""
    evaluation_env_events: Mapping[str, Any] = field(default_factory=dict)
    writer: Any = None
    """What `trainer.writer` is to be, where a user brought one."""


def assemble(
    run_file: RunFile, session: Session, writer: Writer, slots: Slots | None = None, *, world: World | None = None
) -> Trainer:
    """Builds the trainer that the settings describe, or one rank's share of it."""
    if has_agents(run_file.experiment):
        from quintain.runs.assemble_agents import assemble_agents

        return assemble_agents(run_file, session, writer)
    parts = assemble_parts(run_file, session, writer, slots or Slots(), world or Alone())
    trainer_class: Any = load_part("trainer", behavior_of(run_file).trainer)
    trainer: Trainer = trainer_class.from_parts(parts)
    return trainer


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
    experiment, behavior = run_file.experiment, behavior_of(run_file)
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(experiment.seed)
    GlobalStreams().seed(rng.child("global").child(f"rank_{world.rank}") if world.rank else rng.child("global"))
    hosting = Hosting.from_settings(run_file.run.env_workers)
    plan = _make_plan(run_file, slots, hosting, world)
    placement = _make_placement(run_file, plan)
    env = placement.env
    for note in env.notes:
        writer.note(note)
    policy = slots.policy or make_policy(run_file, env.spec)
    if policy.spec != env.spec:
        raise SpecMismatch(f"the policy takes {policy.spec}, and the environment has {env.spec}. Use one made for it")
    policy.to(resolve_device(run_file.run.device))
    signals = {name: load_part("reward_signal", s)(s) for name, s in behavior.reward_signals.items()}
    make_algorithm = slots.make_algorithm or load_part("algorithm", behavior.algorithm)
    algorithm: Algorithm = make_algorithm(behavior.algorithm, policy, signals, rng.child("algorithm"))
    algorithm.join(world)
    policy.join(world)
    accelerated = accelerate(policy, algorithm)
    for note in kernel_notes(accelerated):
        writer.note(note)
    episodes = EpisodeWindow(max(1, WINDOW_SIZE // world.size))
    _require_groups(experiment.env, algorithm, env)
    algorithm.group_size = env.group_size
    connect_symmetry(behavior.algorithm, algorithm, lambda: env.mirror)
    trainer_class: Any = slots.trainer_class or load_part("trainer", behavior.trainer)
    plan.fields = gather_fields(env.spec, policy, algorithm, *algorithm.signals.values(), trainer_class)
    source, blocks = placement.furnish(policy, episodes.extend, starts_fresh=algorithm.starts_fresh)
    return Parts(
        policy=policy,
        algorithm=algorithm,
        source=source,
        store=_make_store(run_file, blocks, algorithm.minibatch_fields, session, writer, world),
        progress=Progress(experiment.budget.env_steps, experiment.budget.updates),
        events=make_events(behavior, _event_context(run_file, slots, hosting, rng, world)),
        stats=StatsReporter(writer),
        episodes=episodes,
        guard=UpdateGuard(run_file.run),
        session=session,
        hosting=hosting,
        writer=writer if slots.writer is None else slots.writer,
        world=world,
        accelerated=accelerated,
    )


def _make_plan(run_file: RunFile, slots: Slots, hosting: Hosting, world: World) -> ActingPlan:
    return ActingPlan(
        run_file,
        hosting,
        slot=slots.env,
        env_events=slots.env_events,
        has_own_policy=slots.policy is not None,
        rank=world.rank,
        num_ranks=world.size,
    )


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
    blocks: Sequence[Rollout],
    keep: Sequence[str],
    session: Session,
    writer: Writer,
    world: World,
) -> RolloutStore:
    settings = behavior_of(run_file).rollout
    store_class: Any = load_part("rollout", settings)
    store: RolloutStore
    if isinstance(settings, ReplaySettings):
        # On all ranks together there are as many transitions as on one.
        settings = settings.model_copy(update={"buffer_size": settings.buffer_size // world.size})
        place = ReplayPlace(run_file.run.replay, session.runs_dir, keeps_checkpoints=session.keeps_checkpoints)
        layout, num_rows = replay_rows(blocks[0], settings, keep)
        allocate, note = place.allocator(num_rows * layout.row_bytes, layout.row_bytes)
        if note:
            writer.note(note)
        store = store_class(*blocks, settings=settings, keep=keep, allocate=allocate)
    else:
        store = store_class(*blocks, settings=settings)
    return store


def _event_context(run_file: RunFile, slots: Slots, hosting: Hosting, rng: Rng, world: World) -> EventContext:
    settings: Any = run_file.experiment.env
    return EventContext(
        env_maker(run_file, slots.evaluation_env or slots.env, hosting),
        rng,
        run_file.budget,
        world,
        env_events=slots.evaluation_env_events,
        on_nonfinite=settings.on_nonfinite,
    )


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
