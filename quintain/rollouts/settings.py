"""Declares the settings of the rollout stores that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings


class RolloutSettings(PartSettings):
    """Configures how many steps a rollout has and how long it may wait."""

    keeps_replay: ClassVar[bool] = False
    """Whether experience is kept beyond the update that it was collected for."""
    report_every_env_steps: ClassVar[int] = 1
    """Steps between two rows of metrics, where the run does not say; 1 is every update."""
    steps_per_batch: ClassVar[int] = 0
    """Steps of trajectories that make a batch; blocks of lanes are always full."""

    num_steps: Count = 128
    """Steps of each lane in one rollout."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Policy versions by which experience may lag behind; 0 makes acting and learning take turns."""


class BlockSettings(RolloutSettings):
    """Keeps whole rollouts in blocks that are allocated once and used once."""


class ReplaySettings(RolloutSettings):
    """Keeps the newest transitions, to learn from each many times."""

    keeps_replay: ClassVar[bool] = True
    report_every_env_steps: ClassVar[int] = 1000

    num_steps: Count = 1
    """Steps of each lane between two updates."""

    buffer_size: Count = 1_000_000
    """Transitions that are kept; the oldest make room for new ones."""

    num_return_steps: Count = 1
    """Rewards that are added up before the critic is asked what follows (n-step returns)."""

    @property
    def sequence_steps(self) -> int:
        """Steps of a sequence at most, where a recurrent policy learns from sequences."""
        return self.num_steps


class TrajectorySettings(PartSettings):
    """Keeps whole trajectories of agents until there are enough for an update."""

    keeps_trajectories: ClassVar[bool] = True
    """Whether it holds trajectories of agents that come and go instead of steps of lanes."""

    time_horizon: Count = 64
    """Steps of one agent after which a trajectory is cut, and bootstrapped from what was seen next."""

    buffer_size: Count = 10_240
    """Steps of all agents of the behaviour in one update; whole trajectories may make it a little more."""

    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 lets agents act on while their policy learns, with the version before; 0 makes both take turns."""

    budget_env_steps: Count | None = None
    """Steps of the behaviour's agents to learn from; null is the run's budget."""

    @property
    def steps_per_batch(self) -> int:
        """Steps that are collected before an update."""
        return self.buffer_size


class TrajectoryReplaySettings(PartSettings):
    """Keeps the newest transitions of agents, to learn from each many times."""

    keeps_trajectories: ClassVar[bool] = True
    keeps_replay: ClassVar[bool] = True
    report_every_env_steps: ClassVar[int] = 1000
    num_return_steps: ClassVar[int] = 1

    time_horizon: Count = 64
    """Steps of one agent after which a trajectory is cut and remembered."""

    num_steps: Count = 64
    """Steps of all agents of the behaviour between two updates; whole trajectories may make it a little more."""

    buffer_size: Count = 50_000
    """Transitions that are kept; the oldest make room for new ones."""

    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """1 lets agents act on while their policy learns, with the version before; 0 makes both take turns."""

    budget_env_steps: Count | None = None
    """Steps of the behaviour's agents to learn from; null is the run's budget."""

    @property
    def steps_per_batch(self) -> int:
        """Steps that are collected before an update."""
        return self.num_steps

    @property
    def sequence_steps(self) -> int:
        """Steps of a sequence at most, where a recurrent policy learns from sequences."""
        return self.time_horizon


REGISTERED = (
    Registration("rollout", "block", BlockSettings, "quintain.rollouts.store:RolloutBuffer"),
    Registration("rollout", "replay", ReplaySettings, "quintain.rollouts.replay:ReplayBuffer"),
    Registration("rollout", "trajectories", TrajectorySettings, "quintain.rollouts.store:RolloutBuffer"),
    Registration("rollout", "trajectory_replay", TrajectoryReplaySettings, "quintain.rollouts.replay:ReplayBuffer"),
)
