"""Reward signals of tests that end with their episodes, so that one critic can learn them."""

from __future__ import annotations

from examples.extending.rnd import RND
from quintain.rewards import RewardSignalSettings


class Ending(RND):
    """RND whose rewards end with an episode."""

    settings_class = RewardSignalSettings
    ignores_ends = False
