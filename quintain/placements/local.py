"""Acts where it learns, in one thread: in turns, or with `max_staleness` one version behind, as elsewhere."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.errors import QuintainError, SettingsError
from quintain.placements.actor import Actor
from quintain.placements.ahead import AheadSource
from quintain.placements.commands import Answer, Command
from quintain.placements.outpost import WatchedOutpost
from quintain.placements.plan import ActingPlan
from quintain.placements.snapshots import copy_of, make_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import LocalSource, RolloutSource
from quintain.rollouts.sync_collector import EpisodeListener, never
from quintain.services.processes.supervisor import Supervisor

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings


class LocalPlacement:
    """Collects between two updates, in the learner's own thread, by the source that ships or by a subclass of it."""

    def __init__(self, settings: PartSettings, plan: ActingPlan, source_class: type[LocalSource] = LocalSource) -> None:
        if plan.num_blocks > 1 and source_class is not LocalSource:
            raise SettingsError(
                f"rollout.max_staleness: {source_class.__name__} of run.placement.type {settings.type} acts and learns "
                f"in turns; set it to 0, or run.placement to local, threads or processes",
                code="E0253",
            )
        self.settings = settings
        self.plan = plan
        self.source_class = source_class
        # One that acts behind has faults of its own to relay, as in a thread.
        self.hosting = plan.hosting if plan.num_blocks == 1 else plan.make_hosting()
        self.env = plan.make_env(self.hosting)

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[RolloutSource, Sequence[Rollout]]:
        blocks = [self.plan.make_block(self.env, policy) for _ in range(self.plan.num_blocks)]
        if len(blocks) == 1:
            collector = self.plan.make_collector(self.env, policy, on_episodes, starts_fresh=starts_fresh)
            return self.source_class(self.settings, collector), blocks
        snapshots, team = [make_snapshot(policy) for _ in blocks], self.hosting.team
        collector = self.plan.make_collector(self.env, copy_of(policy), on_episodes, starts_fresh=starts_fresh)
        actor = Actor(collector, blocks, snapshots, self.hosting.faults)
        outpost = InlineActor(actor, [] if team is None else [team.supervisor])
        watch = WatchedOutpost(outpost, self.plan.patience_seconds)
        return AheadSource(watch, blocks, snapshots, policy, self.plan.hosting.faults, on_episodes), blocks


class InlineActor:
    """Carries out a command when its answer is asked for, in the thread of the learner."""

    def __init__(self, actor: Actor, supervisors: Sequence[Supervisor]) -> None:
        self.actor = actor
        self.supervisors = supervisors
        self.commands: deque[Command] = deque()
        self.is_interrupted = False

    @property
    def env(self) -> Env:
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
