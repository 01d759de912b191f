"""Agents that see small images in an environment that computes nothing, and the trainer files for them.

Images and settings are those of ML-Agents' own tests of learning from pixels: 20x20x3, one layer, minibatches of 16 for
PPO and of 128 for SAC with a number and a choice.
Needs nothing but numpy before one of the two libraries is asked for, because it runs in the interpreters of both.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from free_agents import Free

SHAPE = (20, 20, 3)
NUM_IMAGES = {"ppo": 1, "sac": 2}
NUM_CHOICES, NUM_NUMBERS = 2, 1
HIDDEN = {"ppo": 32, "sac": 16}
BATCH_SIZE = {"ppo": 16, "sac": 128}
BUFFER_SIZE, NUM_EPOCHS = 64, 3
"""Of PPO."""
NUM_TICK_STEPS = 256
"""Steps between two looks at the clock where nothing else says that a part is over."""

_REST = """\
    network_settings: {hidden_units: HIDDEN, num_layers: 1, vis_encode_type: simple}
    reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0}}
    max_steps: 1000000000
    time_horizon: 64
    summary_freq: 100000000
    checkpoint_interval: 1000000000
    threaded: false
"""
FILES = {
    "ppo": """\
behaviors:
  Free:
    trainer_type: ppo
    hyperparameters:
      batch_size: BATCH
      buffer_size: 64
      learning_rate: 0.0003
      learning_rate_schedule: constant
      num_epoch: 3
""",
    "sac": """\
behaviors:
  Free:
    trainer_type: sac
    hyperparameters:
      batch_size: BATCH
      buffer_size: 50000
      buffer_init_steps: 100
      learning_rate: 0.0003
      learning_rate_schedule: constant
      tau: 0.01
      init_entcoef: 0.01
      steps_per_update: 1
""",
}


def trainer_file(trainer_type: str) -> str:
    """Returns the file for `ppo` or `sac`."""
    text = (FILES[trainer_type] + _REST).replace("HIDDEN", str(HIDDEN[trainer_type]))
    return text.replace("BATCH", str(BATCH_SIZE[trainer_type]))


def arguments(num_agents: int, trainer_type: str) -> dict[str, Any]:
    """Returns what an environment for that trainer is made of."""
    return {"num_agents": num_agents, "num_images": NUM_IMAGES[trainer_type], "is_hybrid": trainer_type == "sac"}


class Watchers(Free):
    """Agents that see images of noise and make one choice of two; hybrid ones choose a number too."""

    def __init__(self, num_agents: int, num_images: int, is_hybrid: bool, specs: ModuleType, steps: ModuleType) -> None:
        self.num_images, self.is_hybrid = num_images, is_hybrid
        super().__init__(num_agents, specs, steps)

    def make_spec(self, specs: ModuleType) -> Any:
        kinds = (specs.DimensionProperty.UNSPECIFIED,) * 3
        seen = [
            specs.ObservationSpec(SHAPE, kinds, specs.ObservationType.DEFAULT, f"image_{number}")
            for number in range(self.num_images)
        ]
        return specs.BehaviorSpec(seen, specs.ActionSpec(NUM_NUMBERS if self.is_hybrid else 0, (NUM_CHOICES,)))

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Any:
        return random.random(shape, np.float32)


def ours(num_agents: int, num_images: int, is_hybrid: bool) -> Watchers:
    """Makes agents for quintain."""
    from quintain.envs.agents import specs, steps

    return Watchers(num_agents, num_images, is_hybrid, specs, steps)


def theirs(num_agents: int, num_images: int, is_hybrid: bool) -> Watchers:
    """Makes agents for ML-Agents."""
    from mlagents_envs import base_env

    return Watchers(num_agents, num_images, is_hybrid, base_env, base_env)
