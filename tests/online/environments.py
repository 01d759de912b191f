"""Environments as users of MineStudio write them, for tests: without torch, which each process of one would import."""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

from quintain.envs.minecraft import JudgeResetCallback, MinecraftCallback, StandInSim, restarts


def env_generator() -> Any:
    return gymnasium.make("CartPole-v1")


class Counter(gymnasium.Env[Any, Any]):
    """Observations tell how often it was made, the episode and the step; the reward of a step is its number.

    Episodes terminate after 5 steps. A made environment breaks at its 8th step, as `fault` says.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_made = 0

    def __init__(self, fault: str = "") -> None:
        Counter.num_made += 1
        self.made, self.fault = Counter.num_made, fault
        self.episode = self.step_number = self.age = 0

    def _seen(self) -> Any:
        return np.array([self.made, self.episode, self.step_number, 1.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode += 1
        self.step_number = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.step_number += 1
        self.age += 1
        if self.age == 8 and self.fault == "raise":
            raise RuntimeError("the connection is lost")
        if self.age == 8 and self.fault == "exit":
            # As a process that runs out of memory.
            os._exit(9)
        if self.age == 8 and self.fault == "error":
            # As Minecraft's bridge does: noise, an end and a word in info.
            return np.full(4, 777.0, np.float32), 777.0, True, True, {"error": "socket closed"}
        return self._seen(), float(self.step_number), self.step_number == 5, False, {}


class Aging(Counter):
    """The clock of its process counts its steps; episodes have `length` steps."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        restarts.time = CLOCK  # type: ignore[assignment]  # for the process of this environment

    def step(self, action: Any) -> Any:
        CLOCK.now += 1.0
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.step_number == self.length, truncated, info


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


CLOCK = Clock()


class Ages(MinecraftCallback):
    """Pays the number of each step of an episode, and lets the clock of its process count steps."""

    def __init__(self) -> None:
        restarts.time = CLOCK  # type: ignore[assignment]  # for the process of this environment

    def after_reset(self, sim: Any, obs: Any, info: Any) -> Any:
        self.step_number = 0
        return obs, info

    def after_step(self, sim: Any, obs: Any, reward: float, *ends: Any) -> Any:
        CLOCK.now += 1.0
        self.step_number += 1
        return (obs, float(self.step_number), *ends)


def aging_simulator(length: int) -> Any:
    return StandInSim(obs_size=(16, 16), num_empty_frames=0, callbacks=[Ages(), JudgeResetCallback(length)])
