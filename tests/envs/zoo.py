"""Environments with one fault each, for the checks to find."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from tests.envs.fragile import Walk


class OldReset(Walk):
    def reset(self) -> Any:  # type: ignore[override]
        super().reset()
        return self._obs()


class ResetWithoutInfo(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=seed)[0]


class OldStep(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or truncated, info


class RaisesInReset(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        raise OSError("no such level")


class RaisesLater(Walk):
    def step(self, action: Any) -> Any:
        if self.age == 3:
            raise ValueError("lost a wheel")
        return super().step(action)


class WrongShape(Walk):
    def _obs(self) -> Any:
        return super()._obs()[:2]


class WrongShapeLater(Walk):
    def _obs(self) -> Any:
        return super()._obs()[: 2 if self.age == 5 else 3]


class WrongType(Walk):
    observation_space = Box(0, 255, (3,), np.uint8)

    def _obs(self) -> Any:
        return np.abs(super()._obs())


class OutOfBounds(Walk):
    observation_space = Box(-0.5, 0.5, (3,), np.float32)


class NotANumber(Walk):
    def _obs(self) -> Any:
        return super()._obs() * (np.nan if self.age == 4 else 1)


class MissingEntry(Walk):
    observation_space = gymnasium.spaces.Dict(  # type: ignore[assignment]
        {"a": Box(-9, 9, (3,), np.float32), "b": Discrete(2)}
    )

    def _obs(self) -> Any:
        return {"a": super()._obs()}


class NoReward(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, None, *rest


class RewardArray(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, np.array([reward]), *rest


class EndsByNumbers(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, int(terminated), int(truncated), info


class NoInfo(Walk):
    def step(self, action: Any) -> Any:
        return *super().step(action)[:4], None


class TimeIsAnEnd(Walk):
    """Calls running out of time a true end."""

    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, self.age == 20, False, {}


class OldTimeLimit(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, _ = super().step(action)
        return obs, reward, terminated or truncated, False, {"TimeLimit.truncated": truncated}


class NeverEnds(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, *_ = super().step(action)
        return obs, reward, False, False, {}


class IgnoresSeed(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None)


class DrawsGlobally(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, reward + random.random() + np.random.random(), *rest  # noqa: NPY002


class TouchesGlobally(Walk):
    """Draws from the global generator and throws the number away."""

    def step(self, action: Any) -> Any:
        np.random.random()  # noqa: NPY002
        return super().step(action)


class TouchesPython(Walk):
    def step(self, action: Any) -> Any:
        random.random()
        return super().step(action)


class Wanders(Walk):
    def step(self, action: Any) -> Any:
        os.chdir("/")
        return super().step(action)


class TakesSignals(Walk):
    def __init__(self) -> None:
        super().__init__()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: None)


class Prints(Walk):
    def step(self, action: Any) -> Any:
        print("one more step")
        return super().step(action)


class OtherFloats(Walk):
    def _obs(self) -> Any:
        return super()._obs().astype(np.float64)


class Remembers(Walk):
    """Does not start over: its second episode depends on its first."""

    num_resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.num_resets += 1
        self.place += self.num_resets
        return self._obs(), {}


class HugeRewards(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        return obs, 1000 * reward, *rest


class NoRewards(Walk):
    def step(self, action: Any) -> Any:
        obs, _, *rest = super().step(action)
        return obs, 0.0, *rest


class HugeObservations(Walk):
    def _obs(self) -> Any:
        return super()._obs() * np.float32(1e4)


class Unbounded(Walk):
    action_space = Box(-np.inf, np.inf, (1,), np.float32)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        return super().step(float(np.tanh(action[0])))


class Lopsided(Unbounded):
    action_space = Box(0.0, 100.0, (1,), np.float32)  # type: ignore[assignment]


class GraphSpace(Walk):
    observation_space = gymnasium.spaces.Graph(Box(0, 1, (1,)), Discrete(2))  # type: ignore[assignment]


class FloatImages(Walk):
    observation_space = Box(0, 1, (16, 16, 3), np.float32)

    def _obs(self) -> Any:
        return np.full((16, 16, 3), 0.5, np.float32) * (self.age / 30)


class ResetsItself(gymnasium.wrappers.Autoreset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        super().__init__(Walk())


ResetsItself.__name__ = "Autoreset"


class MaskOfAnotherSize(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, _ = super().reset(seed=seed)
        return obs, {"action_mask": np.ones(3)}


class OnlyHere(Walk):
    """Can be made only in the process that set this."""

    is_here = False

    def __init__(self) -> None:
        super().__init__()
        if not self.is_here:
            raise RuntimeError("no licence in this process")


class CannotClose(Walk):
    def close(self) -> None:
        raise RuntimeError("the door is stuck")
