"""Acts in the learner's thread: in turns, or one version behind with `max_staleness: 1`, as asynchronous actors do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from quintain.errors import QuintainError
from quintain.placements.actor import Actor
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.commands import Answer, Command
from quintain.placements.fleet import Fleet
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_collector import RemoteCollector, WatchedCollector
from quintain.placements.share import Share
from quintain.placements.snapshots import PublishedWeights, copy_of, make_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener, Collector, LaneCollector, Lanes
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import TrainingEnv


class LocalSource(AheadSource):
    """Orders from an actor in the learner's own thread, which works while it is waited for."""

    def __init__(self, settings: PartSettings, parts: SourceParts) -> None:
        super().__init__(parts)
        self.settings = settings

    @property
    def collector(self) -> LaneCollector | Collector:
        """The collector itself: that of the lanes, or an `AgentWorld`; of several, the first."""
        watched = self.remote.members[0].remote if isinstance(self.remote, Fleet) else self.remote
        inline = watched.collector
        assert isinstance(inline, InlineActor)
        collector = inline.actor.collector
        return collector.lanes if isinstance(collector, Lanes) else collector


class LocalPlacement:
    """Acts in the learner's own thread, by the source that ships or by a subclass of it."""

    def __init__(self, settings: PartSettings, plan: ActingPlan, source_class: type[LocalSource] = LocalSource) -> None:
        self.settings = settings
        self.plan = plan
        self.source_class = source_class
        # Evaluations use the run's own at the same time where acting is behind, as in a thread.
        self.groups = Groups(plan, has_own_hosting=plan.runs_ahead)
        self.env = self.groups.env

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[LocalSource, Blocks]:
        # In turns the policy itself acts: there is nothing to copy. Faults are the run's own: there is none to tell.
        ahead = self.plan.runs_ahead
        remote, shares = self.groups.build(
            policies, InlineActor, starts_fresh=starts_fresh, has_copies=ahead, takes_turns=self.plan.num_collectors > 1
        )
        parts = SourceParts(remote, shares, self.plan.hosting.faults, on_episodes)
        return self.source_class(self.settings, parts), {name: share.blocks for name, share in shares.items()}


class Groups:
    """The collectors of this process: an environment and an actor for each group of lanes."""

    def __init__(self, plan: ActingPlan, *, has_own_hosting: bool) -> None:
        """Makes the environments; each group has hosting of its own, or its share of the run's."""
        self.plan = plan
        numbers = range(plan.num_collectors)
        self.hostings = [
            plan.make_hosting(number) if has_own_hosting else plan.hosting.share(number, plan.num_collectors)
            for number in numbers
        ]
        self.envs = [plan.make_env(self.hostings[number], number) for number in numbers]
        self.env = plan.join_envs(self.envs)

    def build(
        self,
        policies: Mapping[str, Policy],
        host: Callable[[Actor, Sequence[Supervisor]], RemoteCollector],
        *,
        starts_fresh: bool,
        has_copies: bool,
        takes_turns: bool = False,
    ) -> tuple[WatchedCollector | Fleet, dict[str, Share]]:
        """Makes the actors, with copies of the policies or with the policies themselves, and a host for each.

        They take turns where they are in one thread.
        """
        plan = self.plan
        blocks = plan.make_blocks(0 if plan.has_agents else self.env.num_lanes, policies)
        shares = {
            name: Share(
                name,
                policy,
                blocks[name],
                [make_snapshot(policy) if has_copies and not plan.takes_newest else {} for _ in blocks[name]],
                PublishedWeights(policy, _zeros, has_copies=has_copies) if plan.takes_newest else None,
            )
            for name, policy in policies.items()
        }
        published = {name: share.published for name, share in shares.items() if share.published is not None}
        snapshots = {name: share.snapshots for name, share in shares.items()}
        parts, remotes = [], []
        for number, (env, hosting) in enumerate(zip(self.envs, self.hostings, strict=True)):
            acting = {name: copy_of(policy) if has_copies else policy for name, policy in policies.items()}
            collector = plan.make_collector(
                env,
                acting,
                starts_fresh=starts_fresh,
                collector=number,
                published=published,
                takes_turns=takes_turns,
            )
            parts.append(plan.parts_of(blocks, policies, number))
            actor = Actor(collector, parts[-1], snapshots, hosting.faults if has_copies else None)
            supervisors = [hosting.team.supervisor] if has_copies and hosting.team is not None else []
            remotes.append(WatchedCollector(host(actor, supervisors), plan.patience_seconds))
        return remotes[0] if len(remotes) == 1 else Fleet(self.env, shares, remotes, parts), shares


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


class InlineActor:
    """Executes a command when its answer is requested, in the learner's thread."""

    def __init__(self, actor: Actor, supervisors: Sequence[Supervisor]) -> None:
        self.actor = actor
        self.supervisors = supervisors
        self.commands: deque[Command] = deque()
        self.is_interrupted = False

    @property
    def env(self) -> TrainingEnv:
        return self.actor.collector.env

    def send(self, command: Command) -> None:
        self.commands.append(command)

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer | None:
        answer = self.actor.obey(self.commands[0], lambda: self.is_interrupted or should_stop())
        if answer is not None:
            self.commands.popleft()
        return answer

    def interrupt(self, is_wanted: bool) -> None:
        self.is_interrupted = is_wanted

    @property
    def pulse(self) -> int:
        return self.actor.pulse

    def give_up(self, seconds: float) -> QuintainError:
        raise AssertionError("an answer is never waited for")

    def close(self) -> None:
        self.actor.close()
