"""Settings of the built-in rollout stores. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings


class RolloutSettings(PartSettings):
    """Length of rollouts and their maximum staleness."""

    keeps_replay: ClassVar[bool] = False
    """Whether experience is kept beyond the update it was collected for (a replay buffer)."""
    report_every_env_steps: ClassVar[int] = 1
    """Environment steps between two rows of metrics, if the run does not set it; 1 is every update."""
    steps_per_batch: ClassVar[int] = 0
    """Steps of trajectories in a batch; 0 for lanes, whose blocks are always full."""

    num_steps: Count = 128
    """Steps of each lane in one rollout."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Maximum lag of the acting policy in versions; 0 alternates acting and learning, 1 makes them asynchronous."""


class BlockSettings(RolloutSettings):
    """Whole rollouts for on-policy algorithms, in blocks that are allocated once and used once."""


class LockstepSettings(RolloutSettings):
    """Fixed-length fragments of lanes that step together, several of each lane in one update; such runs are exact."""

    num_steps: Count = 64
    """Steps of one lane in a fragment."""

    fragments_per_lane: Count = 2
    """Fragments of each lane in one update, each a sequence of its own for recurrent policies."""


class FragmentSettings(RolloutSettings):
    """Fixed-length fragments of lanes that do not wait for each other; such runs are not exact."""

    num_steps: Count = 64
    """Steps of one lane in a fragment."""

    num_fragments: Count = 32
    """Fragments in one update, of any lanes."""

    max_staleness: Annotated[int, Field(ge=0)] = 0
    """Maximum age of a fragment's first step in versions, at arrival and at use; 0 takes turns and drops nothing."""

    max_reuse: Count = 1
    """How often a fragment may be learned from (blocks: once); `num_fragments / max_reuse` are new in an update."""

    capacity: Count | None = None
    """Fragments in the store, beyond which the oldest are dropped; null is as many as updates leave there."""

    deadline_seconds: Annotated[float, Field(ge=0.0)] = 0.002
    """How long lanes that are ready wait for others before the policy acts for them."""

    timeout_seconds: Annotated[float, Field(gt=0.0)] = 900.0
    """How long an update waits for the next fragment of any lane before the run ends with the lanes' states."""

    @property
    def num_new(self) -> int:
        """Fragments that are collected for one update."""
        return -(-self.num_fragments // self.max_reuse)


class ReplaySettings(RolloutSettings):
    """A replay buffer: keeps the newest transitions, to learn from each many times."""

    keeps_replay: ClassVar[bool] = True
    report_every_env_steps: ClassVar[int] = 1000

    num_steps: Count = 1
    """Steps of each lane between two updates."""

    buffer_size: Count = 1_000_000
    """Capacity of the replay buffer in transitions; the oldest are overwritten."""

    num_return_steps: Count = 1
    """Number of rewards in n-step returns, before the critic's bootstrap value."""

    @property
    def sequence_steps(self) -> int:
        """Maximum length of a sequence, for recurrent policies."""
        return self.num_steps


class TrajectorySettings(PartSettings):
    """Whole trajectories of agents, collected until there are enough for an update."""

    keeps_trajectories: ClassVar[bool] = True
    """Whether it holds trajectories of agents that come and go instead of steps of lanes."""

    time_horizon: Count = 64
    """Maximum steps of one agent in a trajectory, which is then bootstrapped from the next observation."""

    buffer_size: Count = 10_240
    """Steps of all agents of the behaviour in one update; whole trajectories may exceed it a little."""

    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """Maximum lag of the acting policy in versions: 0 alternates acting and learning, 1 makes them asynchronous."""

    budget_env_steps: Count | None = None
    """Number of steps of the behaviour's agents to train on; null is the run's budget."""

    @property
    def steps_per_batch(self) -> int:
        """Steps that are collected before an update."""
        return self.buffer_size


class TrajectoryReplaySettings(PartSettings):
    """A replay buffer for agents: keeps the newest transitions, to learn from each many times."""

    keeps_trajectories: ClassVar[bool] = True
    keeps_replay: ClassVar[bool] = True
    report_every_env_steps: ClassVar[int] = 1000
    num_return_steps: ClassVar[int] = 1

    time_horizon: Count = 64
    """Maximum steps of one agent in a trajectory, which is then written to the replay buffer."""

    num_steps: Count = 64
    """Steps of all agents of the behaviour between two updates; whole trajectories may exceed it a little."""

    buffer_size: Count = 50_000
    """Capacity of the replay buffer in transitions; the oldest are overwritten."""

    max_staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """Maximum lag of the acting policy in versions: 0 alternates acting and learning, 1 makes them asynchronous."""

    budget_env_steps: Count | None = None
    """Number of steps of the behaviour's agents to train on; null is the run's budget."""

    @property
    def steps_per_batch(self) -> int:
        """Steps that are collected before an update."""
        return self.num_steps

    @property
    def sequence_steps(self) -> int:
        """Maximum length of a sequence, for recurrent policies."""
        return self.time_horizon


REGISTERED = (
    Registration("rollout", "block", BlockSettings, "quintain.rollouts.store:RolloutBuffer"),
    Registration("rollout", "lockstep", LockstepSettings, "quintain.rollouts.lockstep_store:LockstepBuffer"),
    Registration("rollout", "fragments", FragmentSettings, "quintain.rollouts.fragment_store:FragmentBuffer"),
    Registration("rollout", "replay", ReplaySettings, "quintain.rollouts.replay:ReplayBuffer"),
    Registration("rollout", "trajectories", TrajectorySettings, "quintain.rollouts.store:RolloutBuffer"),
    Registration("rollout", "trajectory_replay", TrajectoryReplaySettings, "quintain.rollouts.replay:ReplayBuffer"),
)
