"""Renders a native lane with Gymnasium's environment of the same task, set to the lane's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from quintain.errors import EnvError

if TYPE_CHECKING:
    from quintain.typing import Action, Array, Observation


class Canvas:
    """Renders one task; its environment is made with the first image."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.envs: list[gymnasium.Env[Observation, Action]] = []

    def draw(self, state: Array, parameters: Mapping[str, float], action: float | None) -> Array:
        """Returns an image [height, width, 3]; `action` is the last action of the episode, which a pendulum shows."""
        try:
            if not self.envs:
                made = gymnasium.make(self.name, render_mode="rgb_array", disable_env_checker=True)
                self.envs.append(made.unwrapped)
            vars(self.envs[0]).update(parameters, state=state.copy(), last_u=action)
            return np.asarray(self.envs[0].render())
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvError(f"env {self.name!r} cannot draw itself: {reason}", code="E0522") from error

    def close(self) -> None:
        for env in self.envs:
            env.close()
