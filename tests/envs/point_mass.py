"""A small simulator of ours: points that are pushed to the origin, all lanes in tensors, with every hook in use."""

from __future__ import annotations

from typing import Any

import torch

from quintain.data.spec import BehaviorSpec, box
from quintain.envs.embodied import EmbodiedEnv, TaskState


class PointMass(EmbodiedEnv):
    """Push a point on a line to the origin; the reward is what a step brings it nearer, less a price on jerks."""

    def __init__(self, num_lanes: int = 4, *, max_episode_steps: int | None = 12, goal: float = 0.1) -> None:
        super().__init__(
            BehaviorSpec(obs=box(2), action=box(1, low=-1.0, high=1.0)), num_lanes, max_episode_steps=max_episode_steps
        )
        self.goal = goal
        self.position = torch.zeros(num_lanes)
        self.before = torch.zeros(num_lanes)
        self.gain = torch.full((num_lanes,), 0.2)
        self.num_resets = torch.zeros(num_lanes, dtype=torch.int64)
        self.friction = 0.0

    def advance(self, action: Any) -> None:
        self.before.copy_(self.position)
        self.position += self.gain * (1.0 - self.friction) * action[:, 0]

    def write_obs(self, out: Any, lanes: Any) -> None:
        rows = slice(None) if lanes is None else lanes
        out[rows, 0] = self.position[rows]
        out[rows, 1] = self.gain[rows]

    def write_reward(self, out: torch.Tensor, action: Any) -> None:
        nearer = self.before.abs() - self.position.abs()
        jerk = (action[:, 0] - self.last_action["action"][:, 0]).abs()
        self.reward_terms = {"nearer": nearer, "jerk": jerk}
        torch.sub(nearer, 0.01 * jerk, out=out)

    def compute_task_state(self) -> TaskState:
        distance = self.position.abs()
        return TaskState(success=distance < self.goal, fail=distance > 3.0, metrics={"distance": distance})

    def start_episodes(self, lanes: torch.Tensor) -> None:
        self.num_resets[lanes] += 1
        # Starts depend on lane and episode only, so that every run meets the same.
        self.position[lanes] = ((lanes + 1) * 0.37 + self.num_resets[lanes] * 0.53) % 2.0 - 1.0
