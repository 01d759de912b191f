"""MineStudio's estimation of advantages over fragments, by the recursion of the core."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from quintain.algorithms.returns import generalized_advantages
from quintain.data.fragments import end_to_end
from quintain.online.fragments import FragmentIndex

if TYPE_CHECKING:
    from quintain.typing import Array


@dataclass
class GAEInfo:
    """What the estimation needs of one fragment."""

    reward: Array
    """[T]"""
    terminated: Array
    """[T]"""
    truncated: Array
    """[T]"""
    value: Array
    """[T + 1] values of all observations, the next one included, in the scale of rewards"""
    final_value: Array
    """[T] the value of an episode's own last observation, where it was truncated"""
    valid: Array
    """[T] whether the step counts; others get the advantage 0"""
    follows: bool = True
    """Whether it follows the fragment before it without a gap."""


class GAEWorker:
    """Estimates advantages and targets of fragments; consecutive ones of an environment are one sequence.

    Terminations are worth 0, truncations the value of the episode's own last observation.
    """

    def __init__(self, discount: float, gae_lambda: float) -> None:
        self.discount, self.gae_lambda = discount, gae_lambda
        self.infos: dict[FragmentIndex, GAEInfo] = {}
        self.targets: dict[FragmentIndex, tuple[Array, Array]] = {}
        self.average_gae_length = 0.0
        """Steps of a sequence, in the mean of the last estimation."""

    def reset(self) -> None:
        """Forgets all fragments."""
        self.infos, self.targets = {}, {}

    def update_gae_infos(self, infos: Mapping[FragmentIndex, GAEInfo]) -> None:
        """Takes fragments for the next estimation."""
        self.infos |= infos

    def calculate_target(self) -> None:
        """Estimates advantages and targets of all fragments."""
        infos = list(self.infos.values())
        if not infos:
            return
        names = sorted({index.worker_uuid for index in self.infos})
        lane = np.array([names.index(index.worker_uuid) for index in self.infos])
        number = np.array([index.fid_in_worker for index in self.infos])
        follows = np.array([each.follows for each in infos])
        reward, terminated, truncated, value, final_value, valid = (
            np.stack([getattr(each, name) for each in infos], axis=1)
            for name in ("reward", "terminated", "truncated", "value", "final_value", "valid")
        )
        recursion = partial(generalized_advantages, gamma=self.discount, gae_lambda=self.gae_lambda)
        done = terminated | truncated
        steps = (reward, value, final_value, terminated, done, valid)
        # Numbers of fragments may begin at 0; those of the core begin at 1.
        advantage = end_to_end(lane, number + 1, follows, recursion, *steps)
        self.targets = {
            index: (advantage[:, place] + value[:-1, place], advantage[:, place])
            for place, index in enumerate(self.infos)
        }
        before = {FragmentIndex(each.worker_uuid, each.fid_in_worker + 1) for each in self.infos}
        starts = sum(not (each.follows and index in before) for index, each in self.infos.items())
        self.average_gae_length = reward.size / starts

    def get_average_gae_length(self) -> float:
        """Returns the steps of a sequence, in the mean of the last estimation."""
        return self.average_gae_length

    def get_target(self, indexes: Sequence[FragmentIndex]) -> list[tuple[Array, Array]]:
        """Returns the targets [T] and advantages [T] of fragments."""
        return [self.targets[index] for index in indexes]
