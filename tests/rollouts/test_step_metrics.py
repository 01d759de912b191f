"""What an environment says about its steps is averaged where it is a number for each lane, and left alone elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.rollouts.step_metrics import StepMetrics


def test_means_are_over_lanes_and_then_over_steps() -> None:
    metrics = StepMetrics()
    metrics.add({"rewards": {"near": torch.tensor([1.0, 3.0])}, "metrics": {"speed": np.array([1, 2]), "on": 0.5}})
    metrics.add({"rewards": {"near": torch.tensor([5.0, 7.0])}, "other": {"speed": np.array([9.0])}})
    assert metrics.drain() == {"rewards/near": 4.0, "metrics/speed": 1.5, "metrics/on": 0.5}
    assert metrics.drain() == {}


@pytest.mark.parametrize(
    "said",
    [
        None, 3.5, {}, {"_speed": np.ones(2)}, {"a": "fast"}, {"a": None}, {"a": np.array(["x", "y"])},
        {"a": [[1], [1, 2]]},
        {"a": np.zeros((2, 3))}, {"a": torch.zeros(2, 3)}, {"a": np.empty(0)}, {"a": np.array([None, 1.0])},
    ],
)  # fmt: skip
def test_what_is_no_number_for_each_lane_is_left_out(said: Any) -> None:
    metrics = StepMetrics()
    metrics.add({"metrics": said})
    assert metrics.drain() == {}


class Talkative(gymnasium.Env[Any, Any]):
    """Says how fast it is."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(1, np.float32), 0.0, False, False, {"metrics": {"speed": 2.0}}


def test_the_marks_that_gymnasium_puts_beside_numbers_are_no_numbers() -> None:
    env = gymnasium.vector.SyncVectorEnv([Talkative] * 2)
    trainer = Trainer("ppo", env, num_steps=4, batch_size=8, events=[], writers=[])
    trainer._stage_collect()
    sums = trainer.stats.state_dict()["sums"]
    assert {name: total for name, total in sums.items() if name.startswith("metrics/")} == {"metrics/speed": 2.0}
