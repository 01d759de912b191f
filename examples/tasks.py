"""Small tasks for the examples and the learning tests: each needs something that CartPole does not.

Use one by its name, such as `quintain train ppo examples.tasks:hidden_velocity_cartpole`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class HiddenVelocity(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Shows the positions of CartPole and hides its velocities: they have to be remembered from step to step."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = Box(-np.inf, np.inf, (2,), np.float32)

    def observation(self, observation: Any) -> Any:
        return observation[[0, 2]]


def hidden_velocity_cartpole() -> gymnasium.Env[Any, Any]:
    return HiddenVelocity(gymnasium.make("CartPole-v1"))


class Workshop(gymnasium.Env[Any, Any]):
    """Choose the tool that the order asks for, among those that are not broken, and set its dial.

    The observation is a Dict of an order (Discrete), the state of each tool (MultiDiscrete) and a wanted setting (Box);
    the action is a Dict of a tool (Discrete, masked) and a dial (Box). A step is worth 1 for the right tool, or for any
    tool if the right one is broken, and up to 1 for the dial. Ten orders make an episode.
    """

    num_tools = 4
    observation_space = Dict(
        {
            "order": Discrete(num_tools),
            "broken": MultiDiscrete([2] * num_tools),
            "wanted": Box(-1.0, 1.0, (1,), np.float32),
        }
    )
    action_space = Dict({"tool": Discrete(num_tools), "dial": Box(-1.0, 1.0, (1,), np.float32)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_orders = 0
        return self._next_order()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        tool = int(action["tool"])
        if self.broken[tool]:
            raise ValueError(f"tool {tool} is broken and was masked")
        is_right = tool == self.order or self.broken[self.order]
        error = abs(float(action["dial"][0]) - float(self.wanted[0]))
        self.num_orders += 1
        obs, info = self._next_order()
        return obs, float(is_right) + max(0.0, 1.0 - 2.0 * error), False, self.num_orders == 10, info

    def _next_order(self) -> tuple[Any, dict[str, Any]]:
        self.order = int(self.np_random.integers(self.num_tools))
        self.broken = self.np_random.random(self.num_tools) < 0.3
        self.broken[self.np_random.integers(self.num_tools)] = False
        self.wanted = self.np_random.uniform(-1.0, 1.0, 1).astype(np.float32)
        obs = {"order": self.order, "broken": self.broken.astype(np.int64), "wanted": self.wanted}
        return obs, {"action_mask": ~self.broken}


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls through a picture of 10 x 10 pixels; move the paddle below it. 1 for a catch, -1 for a miss."""

    size = 10
    observation_space = Box(0, 255, (size, size, 1), np.uint8)
    action_space = Discrete(3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.ball = 0, int(self.np_random.integers(self.size))
        self.paddle = int(self.np_random.integers(self.size))
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + int(action) - 1, 0, self.size - 1))
        self.row += 1
        is_down = self.row == self.size - 1
        reward = 0.0 if not is_down else 1.0 if self.paddle == self.ball else -1.0
        return self._picture(), reward, is_down, False, {}

    def _picture(self) -> Any:
        picture = np.zeros((self.size, self.size, 1), np.uint8)
        picture[self.row, self.ball] = 255
        picture[self.size - 1, self.paddle] = 255
        return picture
