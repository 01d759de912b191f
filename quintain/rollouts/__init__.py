"""The acting half: collectors that fill blocks, and the store in which blocks wait."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Evaluator": "quintain.rollouts.evaluate",
        "LocalSource": "quintain.rollouts.source",
        "ReplayBuffer": "quintain.rollouts.replay",
        "RolloutBuffer": "quintain.rollouts.store",
        "RolloutSource": "quintain.rollouts.source",
        "RolloutStore": "quintain.rollouts.store",
        "SyncCollector": "quintain.rollouts.sync_collector",
    },
)
