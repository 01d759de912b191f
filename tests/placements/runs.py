"""Small runs in any placement, and what must not depend on it."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from quintain import Trainer
from quintain.services.checkpoints.state_files import digest_of
from tests.envs.fragile import Walk

LANES, STEPS = 2, 16
AHEAD = ("threads", "processes")
EITHER = ("threads", pytest.param("processes", marks=pytest.mark.slow))
"""The same for tests that are quick with a thread; another process imports torch before it acts."""


def make(placement: str, max_staleness: int = 0, env: Any = Walk, **settings: Any) -> Trainer:
    chosen: dict[str, Any] = {
        "num_lanes": LANES, "num_steps": STEPS, "batch_size": 16, "num_epochs": 2, "seed": 4,
        "normalize_obs": True, "writers": [], "events": [], "placement": placement, "max_staleness": max_staleness,
    }  # fmt: skip
    return Trainer("ppo", env, **{**chosen, **settings})


def outcome(trainer: Trainer) -> tuple[str, list[float], list[int]]:
    """Returns what a run came to: the digest of its state, and the returns and lengths of its newest episodes."""
    return digest_of(trainer.state_dict()), list(trainer.ret_window), list(trainer.len_window)


def trained(
    placement: str, max_staleness: int = 0, cycles: int = 6, **settings: Any
) -> tuple[str, list[float], list[int]]:
    trainer = make(placement, max_staleness, **settings)
    trainer.train(cycles * LANES * STEPS)
    found = outcome(trainer)
    trainer.close()
    return found


def walk_of(cls: Any, **keywords: Any) -> Any:
    return partial(cls, **keywords)
