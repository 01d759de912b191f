"""Acts where it learns, in one thread: in turns, or with `max_staleness` one version behind, as elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from quintain.errors import QuintainError, SettingsError
from quintain.placements.actor import Actor
from quintain.placements.ahead import AheadSource
from quintain.placements.commands import Answer, Command
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.share import Share
from quintain.placements.snapshots import copy_of, make_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener, Lanes, LocalSource, RolloutSource
from quintain.rollouts.sync_collector import never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import TrainingEnv


class LocalPlacement:
    """Collects between two updates, in the learner's own thread, by the source that ships or by a subclass of it."""

    def __init__(self, settings: PartSettings, plan: ActingPlan, source_class: type[LocalSource] = LocalSource) -> None:
        if (plan.runs_ahead or plan.has_agents) and source_class is not LocalSource:
            raise SettingsError(
                f"rollout.max_staleness: {source_class.__name__} of run.placement.type {settings.type} collects lanes "
                f"between updates; set it to 0, or run.placement to local, threads or processes",
                code="E0253",
            )
        self.settings = settings
        self.plan = plan
        self.source_class = source_class
        # One that acts behind has faults of its own to relay, as in a thread.
        self.hosting = plan.make_hosting() if plan.runs_ahead else plan.hosting
        self.env = plan.make_env(self.hosting)

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[RolloutSource, Blocks]:
        plan, ahead = self.plan, self.plan.runs_ahead
        blocks = plan.make_blocks(self.env, policies)
        # In turns the policy itself acts: there is nothing to copy.
        acting = {name: copy_of(policy) if ahead else policy for name, policy in policies.items()}
        collector = plan.make_collector(self.env, acting, starts_fresh=starts_fresh)
        if isinstance(collector, Lanes) and not ahead:
            collector.on_episodes = on_episodes
            source = self.source_class(self.settings, collector.lanes)
            source.behavior = collector.behavior
            return source, blocks
        shares = {
            name: Share(name, policy, blocks[name], [make_snapshot(policy) if ahead else {} for _ in blocks[name]])
            for name, policy in policies.items()
        }
        actor = Actor(collector, blocks, snapshots_of(shares), self.hosting.faults)
        team = self.hosting.team
        outpost = InlineActor(actor, [] if team is None else [team.supervisor])
        watch = WatchedOutpost(outpost, plan.patience_seconds)
        return AheadSource(watch, shares, plan.hosting.faults, on_episodes, reports_staleness=ahead), blocks


def snapshots_of(shares: Mapping[str, Share]) -> dict[str, Sequence[Any]]:
    """Returns the memory for weights of each behaviour."""
    return {name: share.snapshots for name, share in shares.items()}


class InlineActor:
    """Carries out a command when its answer is asked for, in the thread of the learner."""

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
