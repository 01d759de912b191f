"""Makes the acting side from settings: the environment with its events, the collector and its blocks.

The same in the learner's process and in a collector process: a plan is serialized as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data.fields import Field
from quintain.data.rollout import Allocator, Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.grouped import GroupedAgents
from quintain.envs.base import Env
from quintain.envs.eventful import cfg_of, with_events
from quintain.envs.hosts.grouped import GroupedEnv
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import AgentsSettings, GymSettings, own_wrappers
from quintain.errors import SettingsError
from quintain.placements.plan import Blocks
from quintain.placements.snapshots import PublishedWeights, WeightReader
from quintain.policies.base import Policy
from quintain.policies.settings import NetworkModuleSettings
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.agent_world import AgentWorld
from quintain.rollouts.halves_collector import HalvesCollector
from quintain.rollouts.settings import FragmentSettings
from quintain.rollouts.source import Collector, LaneCollector, Lanes
from quintain.rollouts.sync_collector import SyncCollector
from quintain.runs.env_maker import env_maker
from quintain.services.processes.sent_code import pack_code, unpack_code
from quintain.settings.agent_rules import has_agents
from quintain.settings.placement_rules import ELSEWHERE, integer
from quintain.settings.tree import RunFile
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.learner import ReadyLearner

if TYPE_CHECKING:
    from quintain.rollouts.fragment_store import FragmentBuffer
    from quintain.settings.base import PartSettings
    from quintain.settings.experiment import Behavior
    from quintain.typing import TrainingEnv


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
        self.takes_newest = self.fragments is not None
        """Whether collectors take the newest weights between two acts."""
        self.num_collectors = integer(run_file.experiment.env, "num_collectors") or 1
        """Number of groups of this rank's lanes, or copies, that act by themselves."""
        self.pass_environment: Sequence[str] = run_file.run.env_workers.pass_environment
        """Names of further environment variables that are passed to other processes."""
        self.patience_seconds = run_file.run.env_workers.reset_timeout_seconds
        """Time without progress after which an actor is given up: a reset is the longest call of a lane."""
        self.fields: dict[str, Mapping[str, Field]] = {}
        """The fields of blocks by behaviour; set by the composition root once policies and algorithms are made."""

    @property
    def runs_ahead(self) -> bool:
        """Whether any behaviour has a block that is filled while it learns from another."""
        return any(map(max_staleness, self.run_file.experiment.behaviors.values()))

    def make_hosting(self, collector: int = 0) -> Hosting:
        """Makes separate hosting for a collector's lanes, with its own fault keeper."""
        return Hosting.from_settings(self.run_file.run.env_workers).share(collector, self.num_collectors)

    def specs(self, env: TrainingEnv) -> Mapping[str, BehaviorSpec]:
        """Returns the spaces of each behaviour; lanes have one behaviour."""
        if self.has_agents:
            found: Mapping[str, BehaviorSpec] = env.specs
            return found
        return {next(iter(self.run_file.experiment.behaviors)): env.spec}

    def make_env(self, hosting: Hosting, collector: int = 0) -> Env | AgentEnv:
        """Makes the lanes of a collector of this rank with their events, or its copies of an environment of agents."""
        settings: Any = self.run_file.experiment.env
        num_lanes = settings.num_lanes // self.num_ranks // self.num_collectors
        first_lane = num_lanes * (self.rank * self.num_collectors + collector)
        if (
            self.num_collectors > 1
            and self.slot is not None
            and (isinstance(self.slot, Env | AgentEnv) or not callable(self.slot))
        ):
            raise SettingsError(
                "experiment.env.num_collectors: an environment that exists already cannot be made once for each "
                "collector; pass its class, its factory or its id, or set num_collectors to 1",
                code="E0255",
            )
        if self.has_agents:
            hosting.refuse_workers("agents of all copies act in one pass")
            if isinstance(self.slot, AgentEnv):
                return self.slot
            make_agents = registry.get("env", settings.type).load()
            env: AgentEnv = make_agents(settings, self.rng.child("env"), num_copies=num_lanes, first_copy=first_lane)
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
        make = env_maker(self.run_file, self.slot, hosting, is_training=True)
        lanes = make(num_lanes, self.rng.child("env"), first_lane=first_lane)
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
            env_maker(self.run_file, self.slot, hosting.share(place, 2), is_training=True)(
                middle, self.rng.child("env"), first_lane=first_lane + place * middle
            )
            for place in range(2)
        ]
        return GroupedEnv(*(env for env in halves if isinstance(env, WorkerEnv)))

    def join_envs(self, envs: Sequence[TrainingEnv]) -> TrainingEnv:
        """Returns the environments of all collectors as one."""
        if len(envs) == 1:
            return envs[0]
        return GroupedAgents(envs) if self.has_agents else GroupedEnv(*envs)

    def make_collector(
        self,
        env: TrainingEnv,
        policies: Mapping[str, Policy],
        *,
        starts_fresh: bool,
        collector: int = 0,
        published: Mapping[str, PublishedWeights] | None = None,
        takes_turns: bool = False,
    ) -> Collector:
        if self.has_agents:
            return self._make_world(env, policies, collector)
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
                timeout_seconds=self.fragments.timeout_seconds,
                weights=None if published is None else WeightReader(published[name], policy),
                takes_turns=takes_turns,
                on_nonfinite=on_nonfinite,
            )
        elif isinstance(env, GroupedEnv):
            if starts_fresh:
                raise _cannot_halve("the algorithm begins all lanes together")
            lanes = HalvesCollector(env, policy, rng, _ignore, on_nonfinite=on_nonfinite)
        else:
            lanes = SyncCollector(env, policy, rng, starts_fresh=starts_fresh, on_nonfinite=on_nonfinite)
        return Lanes(name, lanes)

    def _make_world(self, env: AgentEnv, policies: Mapping[str, Policy], collector: int) -> AgentWorld:
        collectors = {}
        for name, policy in policies.items():
            rollout: Any = settings_of(self.run_file, name).rollout
            rng = stream_of(self.run_file, name).child("acting")
            rng = rng.child(f"rank_{self.rank}") if self.rank else rng
            collectors[name] = AgentCollector(
                policy,
                rollout.time_horizon,
                rng.child(f"collector_{collector}") if collector else rng,
                _ignore,
                self.fields[name],
            )
        return AgentWorld(env, collectors, fills_all=self.num_collectors > 1)

    def make_blocks(
        self, num_lanes: int, policies: Mapping[str, Policy], allocate: Allocator | None = None
    ) -> dict[str, list[Rollout]]:
        blocks: dict[str, list[Rollout]] = {}
        for name, policy in policies.items():
            ready = self.learners.get(name)
            if ready is not None and ready.has_own_blocks:
                if self.num_collectors > 1:
                    raise SettingsError(
                        "experiment.env.num_collectors: a learner with its own blocks has one collector; set it to 1",
                        code="E0255",
                    )
                make: Callable[[], Rollout] = ready.make_block
            elif self.has_agents:
                make = partial(self._agents_block, name, policy, 1)
            else:
                make = partial(self._lanes_block, name, policy, num_lanes, allocate)
            blocks[name] = [make() for _ in range(1 + max_staleness(settings_of(self.run_file, name)))]
        return blocks

    def parts_of(self, blocks: Blocks, policies: Mapping[str, Policy], collector: int) -> Blocks:
        """Returns a collector's lanes of all blocks, or blocks of its own for its share of trajectories.

        Fragments have no share: each collector fills what it can of the whole block.
        """
        if self.num_collectors == 1 or self.fragments is not None:
            return blocks
        if not self.has_agents:
            return {name: [block.parts[collector] for block in some] for name, some in blocks.items()}
        return {
            name: [self._agents_block(name, policies[name], self.num_collectors) for _ in some]
            for name, some in blocks.items()
        }

    def _lanes_block(self, name: str, policy: Policy, num_lanes: int, allocate: Allocator | None) -> Rollout:
        settings: Any = settings_of(self.run_file, name).rollout
        fragments = self.fragments
        make = Rollout if fragments is None else self._filled_by_fragments().block_class
        return make(
            policy.spec,
            self.fields[name],
            num_lanes=num_lanes if fragments is None else fragments.num_new // self.num_ranks,
            num_steps=settings.num_steps,
            num_parts=self.num_collectors,
            device=self._acting_device(policy),
            allocate=allocate,
        )

    def _acting_device(self, policy: Policy) -> torch.device:
        """Returns where actors write their steps: the policy's device, or the CPU where they are in other processes."""
        return torch.device("cpu") if self.run_file.run.placement.type in ELSEWHERE else policy.device

    def _filled_by_fragments(self) -> type[FragmentBuffer]:
        """Returns the store of fragments, which names what fills it; imported by its name, as few runs need it."""
        return cast("type[FragmentBuffer]", registry.get("rollout", "fragments").load())

    def _agents_block(self, name: str, policy: Policy, num_shares: int) -> Rollout:
        rollout: Any = settings_of(self.run_file, name).rollout
        # Of all ranks and collectors together a batch has as many steps as of one.
        num_steps, horizon = -(-rollout.steps_per_batch // (self.num_ranks * num_shares)), rollout.time_horizon
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
        # Events, writers and GPUs stay with the learner, and may be of parts that only its process knows.
        settings["run"]["writers"] = []
        settings["run"]["device"] = "cpu"
        settings["run"]["placement"].pop("num_gpus_per_rank", None)
        for behavior in settings["experiment"]["behaviors"].values():
            behavior["events"] = []
            behavior["auxiliary_losses"] = {}
            # So may reward signals; that there are so many is all that acting has to know of them.
            behavior["reward_signals"] = {name: {"type": "extrinsic"} for name in behavior["reward_signals"]}
        named: list[tuple[str, PartSettings]] = [("env", self.run_file.experiment.env)]
        for each in self.run_file.experiment.behaviors.values():
            named += [("policy", each.policy), ("algorithm", each.algorithm), ("rollout", each.rollout)]
            named += [("network", part) for _, part in each.policy if isinstance(part, NetworkModuleSettings)]
        # Parts that only the user's script registers are sent themselves.
        parts = [part for kind, each in named if (part := registry.only_here(kind, each.type)) is not None]
        parts += own_wrappers(self.run_file.experiment.env)
        return {
            "settings": settings,
            "parts": pack_code(parts, ", ".join(part.name for part in parts)) if parts else "",
            "recipe": self._recipe(),
            "rank": self.rank,
            "num_ranks": self.num_ranks,
        }

    @classmethod
    def from_json(cls, words: dict[str, Any]) -> ActingPlan:
        """Makes the plan in a collector's process."""
        if words["parts"]:
            for registration in unpack_code(words["parts"]):  # type: ignore[union-attr]  # a list, as it was packed
                registry.adopt(registration)
        run_file = RunFile.from_mapping(words["settings"])
        slot = None
        if words["recipe"] is not None:
            recipe = Recipe.from_json(words["recipe"])
            recipe.register()
            slot = recipe.made_by() if recipe.settings is None else None
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
        f"run.placement.type: {what} cannot be sent to the collector's process; {advice}, or set it to threads or "
        f"local",
        code="E0252",
    )


def _cannot_halve(why: str) -> SettingsError:
    return SettingsError(f"run.env_workers.acts_in_halves cannot be on: {why}. Leave it out", code="E0232")
