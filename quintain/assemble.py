"""The composition root: the only module that reads the whole settings tree and makes the parts it names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from quintain import registry
from quintain.algorithms.base import Algorithm
from quintain.data.rollout import Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.spec import BehaviorSpec
from quintain.envs.base import Env
from quintain.envs.eventful import cfg_of, with_events
from quintain.envs.gymnasium import env_from_object, gym_env
from quintain.envs.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError, SpecMismatch
from quintain.kernel_notes import kernel_notes
from quintain.policies.base import Policy
from quintain.progress import Progress
from quintain.rng import Rng
from quintain.rollouts.replay_place import ReplayPlace
from quintain.rollouts.settings import ReplaySettings
from quintain.rollouts.store import RolloutStore
from quintain.rollouts.sync_collector import SyncCollector
from quintain.services.events import EventManager
from quintain.services.stats import WINDOW_SIZE, EpisodeWindow, StatsReporter
from quintain.trainers.base import Parts, Session, Trainer
from quintain.trainers.events import CallFunction, EventContext
from quintain.trainers.global_streams import GlobalStreams
from quintain.trainers.guard import UpdateGuard
from quintain.world import Alone, World

if TYPE_CHECKING:
    from quintain.services.writers import Writer
    from quintain.settings.experiment import Behavior
    from quintain.settings.tree import RunFile


class EnvMaker(Protocol):
    """Makes an environment of so many lanes, the first of which has that number among those of all ranks."""

    def __call__(self, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env: ...


@dataclass(frozen=True)
class Slots:
    """Ready objects that take the place of what the settings would make."""

    env: Any = None
    evaluation_env: Any = None
    """What evaluation makes its environments from where `env` is one object, which training alone may step."""
    policy: Policy | None = None
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
    trainer_class: Any = _load("trainer", _behavior(run_file).trainer)
    trainer: Trainer = trainer_class.from_parts(parts)
    return trainer


def assemble_parts(run_file: RunFile, session: Session, writer: Writer, slots: Slots, world: World) -> Parts:
    experiment, behavior = run_file.experiment, _behavior(run_file)
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(experiment.seed)
    GlobalStreams().seed(rng.child("global").child(f"rank_{world.rank}") if world.rank else rng.child("global"))
    hosting = Hosting.from_settings(run_file.run.env_workers)
    env_settings: Any = experiment.env
    env = _training_env(run_file, slots, hosting, rng, world)
    for note in env.notes:
        writer.note(note)
    policy = slots.policy or make_policy(run_file, env.spec)
    if policy.spec != env.spec:
        raise SpecMismatch(f"the policy takes {policy.spec}, and the environment has {env.spec}. Use one made for it")
    policy.to(resolve_device(run_file.run.device))
    signals = {name: _load("reward_signal", s)(s) for name, s in behavior.reward_signals.items()}
    make_algorithm = slots.make_algorithm or _load("algorithm", behavior.algorithm)
    algorithm: Algorithm = make_algorithm(behavior.algorithm, policy, signals, rng.child("algorithm"))
    algorithm.join(world)
    policy.join(world)
    for note in kernel_notes(policy, algorithm):
        writer.note(note)
    episodes = EpisodeWindow(max(1, WINDOW_SIZE // world.size))
    _require_groups(experiment.env, algorithm, env)
    _connect_symmetry(behavior.algorithm, algorithm, env, policy)
    collector = SyncCollector(
        env,
        policy,
        rng.child("acting"),
        episodes.extend,
        starts_fresh=algorithm.starts_fresh,
        on_nonfinite=env_settings.on_nonfinite,
    )
    return Parts(
        policy=policy,
        algorithm=algorithm,
        source=_load("placement", run_file.run.placement)(run_file.run.placement, collector),
        store=_make_store(run_file, _make_block(behavior, env, policy), session, writer, world),
        progress=Progress(experiment.budget.env_steps),
        events=_make_events(behavior, _event_context(run_file, slots, hosting, rng, world)),
        stats=StatsReporter(writer),
        episodes=episodes,
        guard=UpdateGuard(run_file.run),
        session=session,
        hosting=hosting,
        writer=writer if slots.writer is None else slots.writer,
        world=world,
    )


def _make_block(behavior: Behavior, env: Env, policy: Policy) -> Rollout:
    return Rollout(
        env.spec,
        num_lanes=env.num_lanes,
        num_steps=behavior.rollout.num_steps,  # type: ignore[attr-defined]  # every rollout has steps
        noise_size=policy.noise.size,
        state_size=policy.state_size,
        group_size=env.group_size,
        device=policy.device,
    )


def _make_store(run_file: RunFile, block: Rollout, session: Session, writer: Writer, world: World) -> RolloutStore:
    settings = _behavior(run_file).rollout
    store_class: Any = _load("rollout", settings)
    store: RolloutStore
    if isinstance(settings, ReplaySettings):
        place = ReplayPlace(run_file.run.replay, session.runs_dir, keeps_checkpoints=session.keeps_checkpoints)
        row_bytes = RowLayout(block.spec).row_bytes
        # On all ranks together there are as many transitions as on one.
        buffer_size = settings.buffer_size // world.size
        allocate, note = place.allocator(buffer_size * row_bytes, row_bytes)
        if note:
            writer.note(note)
        store = store_class(block, settings.model_copy(update={"buffer_size": buffer_size}), allocate)
    else:
        store = store_class(block)
    return store


def _event_context(run_file: RunFile, slots: Slots, hosting: Hosting, rng: Rng, world: World) -> EventContext:
    settings: Any = run_file.experiment.env
    return EventContext(
        env_maker(run_file, slots.evaluation_env or slots.env, hosting),
        rng,
        run_file.experiment.budget.env_steps,
        world,
        env_events=slots.evaluation_env_events,
        on_nonfinite=settings.on_nonfinite,
    )


def _training_env(run_file: RunFile, slots: Slots, hosting: Hosting, rng: Rng, world: World) -> Env:
    """Makes this rank's lanes, with their events."""
    settings: Any = run_file.experiment.env
    num_lanes = settings.num_lanes // world.size
    make = env_maker(run_file, slots.env, hosting, is_grouped=True)
    env = make(num_lanes, rng.child("env"), first_lane=num_lanes * world.rank)
    events = {**cfg_of(settings.env_events), **slots.env_events}
    return with_events(env, events, rng.child("env_events").child(f"lanes_from_{env.first_lane}"))


def env_maker(
    run_file: RunFile, slot: Any = None, hosting: Hosting | None = None, *, is_grouped: bool = False
) -> EnvMaker:
    """Returns what makes the run's environment with any number of lanes, for training and for evaluation.

    Only training groups lanes that begin alike: an evaluation of equal episodes would say less than it seems to.
    """
    settings = run_file.experiment.env
    if not is_grouped and "group_size" in type(settings).model_fields:
        settings = settings.model_copy(update={"group_size": 1})
    make = _maker(settings, slot, hosting or Hosting.from_settings(run_file.run.env_workers))
    knows_lanes = "first_lane" in inspect.signature(make).parameters

    def make_env(num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
        if isinstance(slot, Env):
            env: Env = slot
        elif first_lane and not knows_lanes:
            # It cannot give a lane the seeds that it would have on one rank; at least no two ranks share theirs.
            env = make(num_lanes, rng.child(f"lanes_from_{first_lane}"))
        else:
            env = make(num_lanes, rng, **({"first_lane": first_lane} if first_lane else {}))
        if first_lane != env.first_lane:
            env.first_lane = first_lane
        return env

    return make_env


def _maker(settings: Any, slot: Any, hosting: Hosting) -> Callable[..., Env]:
    if slot is not None and not isinstance(slot, Env):
        return partial(_env_from_slot, settings, slot, hosting)
    if slot is None and isinstance(settings, GymSettings):
        return partial(gym_env, settings, hosting=hosting)
    hosting.refuse_workers(f"an environment of type {settings.type} steps all its lanes itself")
    return partial(_load("env", settings), settings)


def _env_from_slot(settings: Any, slot: Any, hosting: Hosting, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
    return env_from_object(
        slot,
        num_lanes,
        rng,
        group_size=settings.group_size,
        encode_text=settings.text_observations == "encode",
        first_lane=first_lane,
        hosting=hosting,
    )


def make_policy(run_file: RunFile, spec: BehaviorSpec) -> Policy:
    """Builds an untrained policy that fits the spaces."""
    settings = _behavior(run_file).policy
    policy: Policy = _load("policy", settings)(settings, spec, Rng(run_file.experiment.seed).child("policy"))
    return policy


def resolve_device(name: str) -> torch.device:
    """Turns `run.device` into a device that exists here."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (not has_cuda or (device.index or 0) >= torch.cuda.device_count()):
        found = f"torch sees {torch.cuda.device_count()} CUDA devices" if has_cuda else "torch sees no CUDA device"
        raise SettingsError(f"run.device: found {name}, but {found}. Use cpu or auto", code="E0218")
    return device


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


def _connect_symmetry(settings: Any, algorithm: Algorithm, env: Env, policy: Policy) -> None:
    if not getattr(settings, "use_symmetry", False):
        return
    if env.mirror is None:
        raise SettingsError(
            "algorithm.use_symmetry needs an environment with a method mirror(obs, action); this one has none",
            code="E0220",
        )
    if policy.state_size:
        raise SettingsError("algorithm.use_symmetry and policy.memory exclude each other. Leave one out", code="E0220")
    if env.spec.mask_size:
        raise SettingsError(
            "algorithm.use_symmetry mirrors observations and actions but no action masks, which this environment has",
            code="E0220",
        )
    algorithm.mirror = env.mirror


def _behavior(run_file: RunFile) -> Behavior:
    return next(iter(run_file.experiment.behaviors.values()))


def _load(kind: str, settings: Any) -> Callable[..., Any]:
    return registry.get(kind, settings.type).load()


def _make_events(behavior: Behavior, context: EventContext) -> EventManager:
    events = EventManager()
    for settings in behavior.events:
        implementation = _load("event", settings)
        event = (
            implementation(settings, context)
            if isinstance(implementation, type)
            else CallFunction(implementation, settings)  # type: ignore[arg-type]  # functions get scheduled settings
        )
        events.add(event.when, event)
    return events
