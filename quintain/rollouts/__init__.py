"""Acting: collectors that fill rollouts, sources, and stores such as the replay buffer."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Evaluator": "quintain.rollouts.evaluate",
        "LocalSource": "quintain.placements.local",
        "ReplayBuffer": "quintain.rollouts.replay",
        "RolloutBuffer": "quintain.rollouts.store",
        "RolloutSource": "quintain.rollouts.source",
        "RolloutStore": "quintain.rollouts.store",
        "SyncCollector": "quintain.rollouts.sync_collector",
    },
)
