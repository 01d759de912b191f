"""Acts where it learns: one thread, one policy, in turns."""

from __future__ import annotations

from collections.abc import Sequence

from quintain.data.rollout import Rollout
from quintain.placements.plan import ActingPlan
from quintain.placements.settings import LocalSettings
from quintain.policies.base import Policy
from quintain.rollouts.source import LocalSource
from quintain.rollouts.sync_collector import EpisodeListener


class LocalPlacement:
    """Collects between two updates, in the learner's own thread."""

    def __init__(self, settings: LocalSettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.env = plan.make_env(plan.hosting)

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[LocalSource, Sequence[Rollout]]:
        collector = self.plan.make_collector(self.env, policy, on_episodes, starts_fresh=starts_fresh)
        return LocalSource(collector), [self.plan.make_block(self.env, policy) for _ in range(self.plan.num_blocks)]
