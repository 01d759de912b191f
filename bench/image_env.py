"""Tasks with 84x84x4 images: one that costs next to nothing, so that learning is what is measured, and Breakout."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

_SIZE, _FRAMES, _POOL, _EPISODE = 84, 4, 64, 200


class Images(gymnasium.Env[Any, Any]):
    """Shows one of a few stacks of random pixels; the right one of four actions, told by the stack, earns 1."""

    observation_space = gymnasium.spaces.Box(0, 255, (_FRAMES, _SIZE, _SIZE), np.uint8)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 256, (_POOL, _FRAMES, _SIZE, _SIZE))
        self.pool = pixels.astype(np.uint8)
        self.age = 0
        self.shown = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        self.shown = int(self.np_random.integers(_POOL))
        return self.pool[self.shown].copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(int(action) == self.shown % 4)
        self.age += 1
        self.shown = (self.shown * 5 + int(action) + 1) % _POOL
        return self.pool[self.shown].copy(), reward, self.age >= _EPISODE, False, {}


def breakout() -> gymnasium.Env[Any, Any]:
    """Makes Breakout with the usual preprocessing; needs ale-py and OpenCV."""
    import ale_py

    gymnasium.register_envs(ale_py)
    env = gymnasium.make("BreakoutNoFrameskip-v4")
    return gymnasium.wrappers.FrameStackObservation(gymnasium.wrappers.AtariPreprocessing(env), _FRAMES)


def factory(env_id: str) -> Any:
    """Returns what makes one environment of a workload."""
    if ":" in env_id:
        return {"Images": Images, "breakout": breakout}[env_id.partition(":")[2]]
    return lambda: gymnasium.make(env_id)
