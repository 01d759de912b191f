"""Acts in the learner's thread: in turns, or one version behind with `max_staleness: 1`, as asynchronous actors do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quintain.errors import QuintainError
from quintain.placements.actor import Actor
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.commands import Answer, Command
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.remote_collector import WatchedCollector
from quintain.placements.share import Share
from quintain.placements.snapshots import copy_of, make_snapshot
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
        """The collector itself: that of the lanes, or an `AgentWorld`."""
        inline = self.remote.collector
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
        self.hosting = plan.make_hosting() if plan.runs_ahead else plan.hosting
        self.env = plan.make_env(self.hosting)

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[LocalSource, Blocks]:
        plan, ahead = self.plan, self.plan.runs_ahead
        blocks = plan.make_blocks(self.env, policies)
        # In turns the policy itself acts: there is nothing to copy.
        acting = {name: copy_of(policy) if ahead else policy for name, policy in policies.items()}
        collector = plan.make_collector(self.env, acting, starts_fresh=starts_fresh)
        shares = {
            name: Share(name, policy, blocks[name], [make_snapshot(policy) if ahead else {} for _ in blocks[name]])
            for name, policy in policies.items()
        }
        # In turns faults are the run's own, and there is no other keeper to tell.
        actor = Actor(collector, blocks, snapshots_of(shares), self.hosting.faults if ahead else None)
        team = self.hosting.team
        remote = InlineActor(actor, [team.supervisor] if ahead and team is not None else [])
        watch = WatchedCollector(remote, plan.patience_seconds)
        parts = SourceParts(watch, shares, plan.hosting.faults, on_episodes, reports_staleness=ahead)
        return self.source_class(self.settings, parts), blocks


def snapshots_of(shares: Mapping[str, Share]) -> dict[str, Sequence[Any]]:
    """Returns the snapshots of weights of each behaviour."""
    return {name: share.snapshots for name, share in shares.items()}


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

    def receive(self, seconds: float, should_stop: Callable[[], bool] = never) -> Answer:
        return self.actor.obey(self.commands.popleft(), lambda: self.is_interrupted or should_stop())

    def interrupt(self, is_wanted: bool) -> None:
        self.is_interrupted = is_wanted

    @property
    def pulse(self) -> int:
        return self.actor.pulse

    def give_up(self, seconds: float) -> QuintainError:
        raise AssertionError("an answer is never waited for")

    def close(self) -> None:
        self.actor.close()
