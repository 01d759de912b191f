"""Acts where it learns: one thread, one policy, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintain.data.rollout import Rollout
from quintain.errors import SettingsError
from quintain.placements.plan import ActingPlan
from quintain.policies.base import Policy
from quintain.rollouts.source import LocalSource
from quintain.rollouts.sync_collector import EpisodeListener

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings


class LocalPlacement:
    """Collects between two updates, in the learner's own thread, by the source that ships or by a subclass of it."""

    def __init__(self, settings: PartSettings, plan: ActingPlan, source_class: type[LocalSource] = LocalSource) -> None:
        if plan.num_blocks > 1:
            raise SettingsError(
                f"rollout.max_staleness has no effect with run.placement.type {settings.type}, which acts and learns "
                f"in turns; set it to 0, or run.placement to threads or processes",
                code="E0213",
            )
        self.settings = settings
        self.plan = plan
        self.source_class = source_class
        self.env = plan.make_env(plan.hosting)

    def furnish(
        self, policy: Policy, on_episodes: EpisodeListener, *, starts_fresh: bool
    ) -> tuple[LocalSource, Sequence[Rollout]]:
        collector = self.plan.make_collector(self.env, policy, on_episodes, starts_fresh=starts_fresh)
        return self.source_class(self.settings, collector), [self.plan.make_block(self.env, policy)]
