"""Reward signals with one value head for their sum, or one value head, discount and advantage per signal.

The policy follows the mean of the signals' advantages, and the critic's loss is the mean of theirs (as in ML-Agents).
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import numpy as np

from quintain.errors import SettingsError, SpecMismatch

if TYPE_CHECKING:
    from quintain.data.rollout import Rollout
    from quintain.rewards.base import RewardSignal
    from quintain.settings.base import PartSettings
    from quintain.typing import Array


@runtime_checkable
class StreamSettings(Protocol):
    """Settings of an algorithm that can learn one value head per reward signal."""

    reward_streams: Literal["summed", "averaged"]


def num_streams(settings: PartSettings, signals: Sized) -> int:
    """Returns the number of value heads: one per reward signal where an algorithm averages them, else one."""
    is_averaged = isinstance(settings, StreamSettings) and settings.reward_streams == "averaged"
    return max(1, len(signals)) if is_averaged else 1


def weighted_reward(name: str, signal: RewardSignal, rollout: Rollout) -> Array:
    """Returns a signal's reward of each step [T, N], times its strength."""
    reward = signal.evaluate(rollout)
    expected = (rollout.num_steps, rollout.num_lanes)
    # Broadcasting would accept other shapes and give every step the reward of another.
    if reward.shape != expected:
        raise SpecMismatch(
            f"reward signal {name!r} returned shape {reward.shape}, expected {expected}: one number for each step and "
            f"lane, steps first"
        )
    return np.float32(signal.strength) * reward


def refuse_what_one_critic_cannot(signals: Mapping[str, RewardSignal]) -> None:
    """Raises if signals cannot share one value head: different discounts, or one continues across episodes."""
    gammas = {name: signal.gamma for name, signal in signals.items()}
    if len(set(gammas.values())) != 1:
        raise SettingsError(
            f"reward_signals have different discounts ({', '.join(f'{k}.gamma {v}' for k, v in gammas.items())}); "
            f"one critic needs one gamma. Give them the same, or set algorithm.reward_streams to averaged, which ppo "
            f"and poca know",
            code="E0216",
        )
    for name, signal in signals.items():
        if signal.ignores_ends:
            raise SettingsError(
                f"reward_signals.{name} goes on after the end of an episode, which needs a value of its own: set "
                f"algorithm.reward_streams to averaged, which ppo and poca know, and have another signal beside it",
                code="E0216",
            )
