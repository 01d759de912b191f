"""Makes the acting side from settings: the environment with its events, the collector and its blocks.

The same in the learner's process and in a collector process: a plan is serialized as JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data.fields import Field
from quintain.data.rollout import Allocator, Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.factory import agent_env
from quintain.envs.base import Env
from quintain.envs.eventful import cfg_of, with_events
from quintain.envs.gym.make import env_from_object, gym_env
from quintain.envs.hosts.halves import HalvesEnv
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import AgentsSettings, GymSettings
from quintain.errors import SettingsError
from quintain.policies.base import Policy
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.agent_world import AgentWorld
from quintain.rollouts.halves_collector import HalvesCollector
from quintain.rollouts.settings import FragmentSettings
from quintain.rollouts.source import Collector, LaneCollector, Lanes
from quintain.rollouts.sync_collector import SyncCollector
from quintain.settings.agent_rules import has_agents
from quintain.settings.tree import RunFile
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.learner import ReadyLearner

if TYPE_CHECKING:
    from quintain.rollouts.fragment_store import FragmentBuffer
    from quintain.settings.experiment import Behavior
    from quintain.typing import TrainingEnv


class EnvMaker(Protocol):
    """Makes an environment with so many lanes; the first has the given index among the lanes of all ranks."""

    def __call__(self, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env: ...


FALLBACK = "default"
"""The behaviour whose settings apply to behaviours that are not named."""


class ActingPlan:
    """Makes the acting side of one rank; implements `quintain.placements.plan.ActingPlan`."""

    def __init__(
        self,
        run_file: RunFile,
        hosting: Hosting,
        *,
        slot: Any = None,
        env_events: Mapping[str, Any] | None = None,
        has_own_policy: bool = False,
        learners: Mapping[str, ReadyLearner] | None = None,
        rank: int = 0,
        num_ranks: int = 1,
    ) -> None:
        self.run_file = run_file
        self.hosting = hosting
        self.slot = slot
        self.env_events = dict(env_events or {})
        self.has_own_policy = has_own_policy
        self.learners = dict(learners or {})
        """Existing learners, by behaviour."""
        self.rank = rank
        self.num_ranks = num_ranks
        self.rng = Rng(run_file.experiment.seed)
        self.has_agents = has_agents(run_file.experiment)
        rollout = next(iter(run_file.experiment.behaviors.values())).rollout
        self.fragments = rollout if isinstance(rollout, FragmentSettings) else None
        """The settings of fragments, if lanes do not wait for each other."""
        self.fields: dict[str, Mapping[str, Field]] = {}
        """The fields of blocks by behaviour; set by the composition root once policies and algorithms are made."""

    @property
    def runs_ahead(self) -> bool:
        """Whether any behaviour has a block that is filled while it learns from another."""
        return any(map(max_staleness, self.run_file.experiment.behaviors.values()))

    @property
    def pass_environment(self) -> Sequence[str]:
        """Names of further environment variables that are passed to other processes."""
        return self.run_file.run.env_workers.pass_environment

    @property
    def patience_seconds(self) -> float:
        """Time without progress after which an actor is given up: a reset is the longest call of a lane."""
        return self.run_file.run.env_workers.reset_timeout_seconds

    def make_hosting(self) -> Hosting:
        """Makes separate hosting for lanes, with its own fault keeper."""
        return Hosting.from_settings(self.run_file.run.env_workers)

    def specs(self, env: TrainingEnv) -> Mapping[str, BehaviorSpec]:
        """Returns the spaces of each behaviour; lanes have one behaviour."""
        if self.has_agents:
            found: Mapping[str, BehaviorSpec] = env.specs
            return found
        return {next(iter(self.run_file.experiment.behaviors)): env.spec}

    def make_env(self, hosting: Hosting) -> Env | AgentEnv:
        """Makes this rank's lanes with their events, or its copies of an environment of agents."""
        settings: Any = self.run_file.experiment.env
        num_lanes = settings.num_lanes // self.num_ranks
        if self.has_agents:
            hosting.refuse_workers("agents of all copies act in one pass")
            if isinstance(self.slot, AgentEnv):
                return self.slot
            env = agent_env(settings, self.rng.child("env"), num_copies=num_lanes, first_copy=num_lanes * self.rank)
            curriculum = Curriculum(settings.curricula)
            if curriculum.lessons:
                curriculum.apply(env)
                env.reset()
            return env
        events = {**cfg_of(settings.env_events), **self.env_events}
        if self.run_file.run.env_workers.acts_in_halves:
            if events:
                raise _cannot_halve("environment events see all lanes at once")
            return self._make_halves(hosting, num_lanes)
        make = env_maker(self.run_file, self.slot, hosting, is_grouped=True)
        lanes = make(num_lanes, self.rng.child("env"), first_lane=num_lanes * self.rank)
        if self.fragments is not None:
            if events:
                raise SettingsError(
                    "experiment.env.env_events see all lanes at one step, and with rollout.type fragments lanes do not "
                    "step together; leave them out, or use rollout.type block",
                    code="E0254",
                )
            return self._filled_by_fragments().env_class(lanes)
        return with_events(lanes, events, self.rng.child("env_events").child(f"lanes_from_{lanes.first_lane}"))

    def _make_halves(self, hosting: Hosting, num_lanes: int) -> Env:
        first_lane, middle = num_lanes * self.rank, num_lanes // 2
        halves = [
            env_maker(self.run_file, self.slot, half, is_grouped=True)(middle, self.rng.child("env"), first_lane=lane)
            for half, lane in zip(hosting.halved(), (first_lane, first_lane + middle), strict=True)
        ]
        first, second = (env for env in halves if isinstance(env, WorkerEnv))
        return HalvesEnv(first, second)

    def make_collector(self, env: TrainingEnv, policies: Mapping[str, Policy], *, starts_fresh: bool) -> Collector:
        if self.has_agents:
            return self._make_world(env, policies)
        [(name, policy)] = policies.items()
        settings: Any = self.run_file.experiment.env
        rng, on_nonfinite = self.rng.child("acting"), settings.on_nonfinite
        lanes: LaneCollector
        if self.fragments is not None:
            if starts_fresh:
                raise SettingsError(
                    "rollout.type fragments does not go with an algorithm that begins all lanes together; use "
                    "rollout.type block",
                    code="E0254",
                )
            lanes = self._filled_by_fragments().collector_class(
                env,
                policy,
                rng,
                self.fields[name],
                num_steps=self.fragments.num_steps,
                deadline_seconds=self.fragments.deadline_seconds,
            )
        elif isinstance(env, HalvesEnv):
            if starts_fresh:
                raise _cannot_halve("the algorithm begins all lanes together")
            lanes = HalvesCollector(env, policy, rng, _ignore, on_nonfinite=on_nonfinite)
        else:
            lanes = SyncCollector(env, policy, rng, starts_fresh=starts_fresh, on_nonfinite=on_nonfinite)
        return Lanes(name, lanes)

    def _make_world(self, env: AgentEnv, policies: Mapping[str, Policy]) -> AgentWorld:
        collectors = {}
        for name, policy in policies.items():
            rollout: Any = settings_of(self.run_file, name).rollout
            rng = stream_of(self.run_file, name).child("acting")
            collectors[name] = AgentCollector(
                policy,
                rollout.time_horizon,
                rng.child(f"rank_{self.rank}") if self.rank else rng,
                _ignore,
                self.fields[name],
            )
        return AgentWorld(env, collectors)

    def make_blocks(
        self, env: TrainingEnv, policies: Mapping[str, Policy], allocate: Allocator | None = None
    ) -> dict[str, list[Rollout]]:
        blocks: dict[str, list[Rollout]] = {}
        for name, policy in policies.items():
            ready = self.learners.get(name)
            if ready is not None and ready.has_own_blocks:
                make: Callable[[], Rollout] = ready.make_block
            elif self.has_agents:
                make = partial(self._agents_block, name, policy)
            else:
                make = partial(self._lanes_block, name, policy, env, allocate)
            blocks[name] = [make() for _ in range(1 + max_staleness(settings_of(self.run_file, name)))]
        return blocks

    def _lanes_block(self, name: str, policy: Policy, env: Env, allocate: Allocator | None) -> Rollout:
        settings: Any = settings_of(self.run_file, name).rollout
        fragments = self.fragments
        make = Rollout if fragments is None else self._filled_by_fragments().block_class
        return make(
            env.spec,
            self.fields[name],
            num_lanes=env.num_lanes if fragments is None else fragments.num_new // self.num_ranks,
            num_steps=settings.num_steps,
            device=policy.device,
            allocate=allocate,
        )

    def _filled_by_fragments(self) -> type[FragmentBuffer]:
        """Returns the store of fragments, which names what fills it; imported by its name, as few runs need it."""
        return cast("type[FragmentBuffer]", registry.get("rollout", "fragments").load())

    def _agents_block(self, name: str, policy: Policy) -> Rollout:
        rollout: Any = settings_of(self.run_file, name).rollout
        # Of all ranks together a batch has as many steps as of one.
        num_steps, horizon = -(-rollout.steps_per_batch // self.num_ranks), rollout.time_horizon
        block: TrajectoryBlock | SequenceBlock = (
            SequenceBlock(policy.spec, horizon, -(-num_steps // horizon), self.fields[name])
            if policy.state_size
            else TrajectoryBlock(policy.spec, num_steps + horizon, self.fields[name])
        )
        block.num_wanted = num_steps
        return block

    def to_json(self) -> dict[str, Any]:
        """Serializes the plan; refuses objects that another process could not make."""
        if self.has_own_policy or self.learners:
            raise _cannot_travel("a policy that exists already", "name its type and settings")
        if self.env_events:
            raise _cannot_travel("functions of event_cfg", "name them in experiment.env.env_events")
        settings = self.run_file.to_dict()
        # Events and writers stay with the learner, and may be of parts that only its process knows.
        settings["run"]["writers"] = []
        for behavior in settings["experiment"]["behaviors"].values():
            behavior["events"] = []
            behavior["auxiliary_losses"] = {}
            # So may reward signals; that there are so many is all that acting has to know of them.
            behavior["reward_signals"] = {name: {"type": "extrinsic"} for name in behavior["reward_signals"]}
        return {
            "settings": settings,
            "recipe": self._recipe(),
            "rank": self.rank,
            "num_ranks": self.num_ranks,
        }

    @classmethod
    def from_json(cls, words: dict[str, Any]) -> ActingPlan:
        run_file = RunFile.from_mapping(words["settings"])
        slot = None
        if words["recipe"] is not None:
            recipe = Recipe.from_json(words["recipe"])
            recipe.register()
            slot = recipe.made_by() if recipe.path else None
        hosting = Hosting.from_settings(run_file.run.env_workers)
        return cls(run_file, hosting, slot=slot, rank=words["rank"], num_ranks=words["num_ranks"])

    def _recipe(self) -> dict[str, Any] | None:
        settings = self.run_file.experiment.env
        if isinstance(settings, AgentsSettings):
            return None
        if self.slot is None:
            return Recipe.from_settings(settings).to_json() if isinstance(settings, GymSettings) else None
        if not callable(self.slot) or isinstance(self.slot, Env):
            raise _cannot_travel("an environment that exists already", "pass its class, its factory or its id")
        return Recipe.from_object(self.slot).to_json()


def _ignore(returns: object, lengths: object) -> None:
    """Ignores episodes; the source sets a callback."""


def settings_of(run_file: RunFile, behavior: str) -> Behavior:
    """Returns the settings of a behaviour; one that is not named has those of `default`."""
    known = run_file.experiment.behaviors
    return known[behavior if behavior in known else FALLBACK]


def stream_of(run_file: RunFile, behavior: str) -> Rng:
    """Returns the random stream of a behaviour's parts; lanes have one behaviour, with the run's stream."""
    rng = Rng(run_file.experiment.seed)
    return rng.child("behaviors").child(behavior) if has_agents(run_file.experiment) else rng


def max_staleness(behavior: Behavior) -> int:
    """Returns the lag of a behaviour's acting policy in versions: how many blocks are filled ahead."""
    most = int(getattr(behavior.rollout, "max_staleness", 0))
    # Of fragments it is a bound on what is learned from; they are collected for one update ahead.
    return min(1, most) if isinstance(behavior.rollout, FragmentSettings) else most


def _cannot_travel(what: str, advice: str) -> SettingsError:
    return SettingsError(
        f"run.placement.type processes: {what} cannot be sent to the collector's process; {advice}, or set it to "
        f"threads or local",
        code="E0252",
    )


def _cannot_halve(why: str) -> SettingsError:
    return SettingsError(f"run.env_workers.acts_in_halves cannot be on: {why}. Leave it out", code="E0232")


def env_maker(
    run_file: RunFile, slot: Any = None, hosting: Hosting | None = None, *, is_grouped: bool = False
) -> EnvMaker:
    """Returns a factory of the run's environment with any number of lanes, for training and for evaluation.

    Only training groups lanes with equal initial states: equal episodes in an evaluation would be redundant.
    """
    settings = run_file.experiment.env
    if has_agents(run_file.experiment):
        raise SettingsError(
            "an environment of agents has no lanes that could be measured or filmed yet",
            code="E0226",
        )
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
    return partial(registry.get("env", settings.type).load(), settings)


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
