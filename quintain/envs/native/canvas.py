"""Pictures of a native lane, drawn by Gymnasium's environment of the same task, which is put into the lane's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from quintain.errors import EnvError

if TYPE_CHECKING:
    from quintain.typing import Action, Array, Observation


class Canvas:
    """Draws one task; the environment that it needs is made with the first picture."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.envs: list[gymnasium.Env[Observation, Action]] = []

    def draw(self, state: Array, parameters: Mapping[str, float], action: float | None) -> Array:
        """Returns a picture [height, width, 3]; `action` is the last one of the episode, which a pendulum shows."""
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
