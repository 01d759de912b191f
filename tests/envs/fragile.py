"""Environments that break in every way, when their seed says so; importable, so that workers can make them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import gymnasium
import numpy as np


class Walk(gymnasium.Env[Any, Any]):
    """A random walk that is a function of its seed and the actions."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.step_seconds = step_seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.age = float(self.np_random.uniform(-1, 1)), 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.place += 0.5 * action - 0.25 + 0.1 * float(self.np_random.normal())
        self.age += 1
        return self._obs(), 1.0 - abs(self.place), abs(self.place) > 2.0, self.age >= 30, {}

    def _obs(self) -> Any:
        return np.array([self.place, self.age / 30, np.sin(self.place)], np.float32)


class Windy(Walk):
    """A walk with a parameter that every observation shows."""

    def __init__(self) -> None:
        super().__init__()
        self.wind = 0.0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.place += self.wind
        return result

    def _obs(self) -> Any:
        return np.array([self.place, self.age / 30, self.wind], np.float32)


class Fragile(Walk):
    """Breaks with a chance at every step, or at every reset, in the way it is told."""

    def __init__(self, how: str = "raise", chance: float = 0.02, call: str = "step") -> None:
        super().__init__()
        self.how, self.chance, self.call = how, chance, call

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        result = super().reset(seed=seed)
        if self.call == "reset" and self.np_random.random() < self.chance:
            strike(self.how)
        return result

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.call == "step" and self.np_random.random() < self.chance:
            strike(self.how)
        return super().step(action)


class WindyAndFragile(Windy):
    """Raises now and then, in a wind that events may change."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.np_random.random() < 0.01:
            strike("raise")
        return super().step(action)


class BreaksOnCommand(Walk):
    """Breaks when the file exists that it is told about, which it removes first."""

    def __init__(self, path: str, how: str = "raise", step_seconds: float = 0.0) -> None:
        super().__init__(step_seconds)
        self.path, self.how = path, how

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if os.path.exists(self.path):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)
                strike(self.how)
        return super().step(action)


class Noisy(Walk):
    """Floods both outputs, changes the directory and takes over the signals, and steps none the worse."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        os.chdir("/")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(1, b"garbage \x1b[31m{}\n" * 2000)
        print("x" * 20_000, file=sys.stderr)
        return super().step(action)


class Tells(Walk):
    """Tells in its observation what it finds in its process."""

    def _obs(self) -> Any:
        has_secret = "WORKER_API_KEY" in os.environ or "sk-123456789012" in os.environ.values()
        return np.array([has_secret, "torch" in sys.modules, os.getpid()], np.float32)


class Hostile(Walk):
    """Finds the socket to the learner and sends it something else."""

    def __init__(self, message: str) -> None:
        super().__init__()
        self.message = bytes.fromhex(message)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.age == 2:
            for descriptor in range(3, 64):
                with contextlib.suppress(OSError):
                    socket.socket(fileno=os.dup(descriptor)).send(self.message)
        return super().step(action)


class Forks(Walk):
    """Starts a process of its own that would live for long."""

    def __init__(self, path: str) -> None:
        super().__init__()
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        with open(path, "a") as file:
            file.write(f"{child}\n")


class StartsSimulator(Walk):
    """Starts a program in a session of its own, as simulators are started so that Ctrl-C does not reach them."""

    def __init__(self, path: str) -> None:
        super().__init__()
        program = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(path, "a") as file:
            file.write(f"{program.pid}\n")


class Chatters(Walk):
    """Says the same to the learner again and again."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.age == 2:
            for descriptor in range(3, 64):
                with contextlib.suppress(OSError):
                    channel = socket.socket(fileno=os.dup(descriptor))
                    for _ in range(1000):
                        channel.send(b'={"again": 1}', socket.MSG_DONTWAIT)
        return super().step(action)


class HasNoSpaceYet(Walk):
    @property
    def observation_space(self) -> Any:  # type: ignore[override]
        raise ValueError("spaces come later")


class DiesWhenMade(Walk):
    def __init__(self) -> None:
        strike("segfault")


class NeedsVariable(Walk):
    def __init__(self) -> None:
        super().__init__()
        self.home = os.environ["SIMULATOR_HOME"]


class Outdated(Walk):
    """Returns what older versions of Gymnasium did, from a certain age on."""

    def __init__(self, what: str, age: int = 0) -> None:
        super().__init__()
        self.what, self.from_age = what, age

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, info = super().reset(seed=seed)
        return obs if self.what == "reset" else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.age <= self.from_age:
            return obs, reward, terminated, truncated, info
        return {
            "four": (obs, reward, terminated, info),
            "none": None,
            "rewards": (obs, np.array([reward, 0.0]), terminated, truncated, info),
            "no reward": (obs, None, terminated, truncated, info),
            "words": (np.array(["a", "b", "c"]), reward, terminated, truncated, info),
            "reset": (obs, reward, terminated, truncated, info),
        }[self.what]


class CannotBeMade(Walk):
    def __init__(self) -> None:
        raise OSError("no display")


def strike(how: str) -> None:
    """Breaks, in one of many ways."""
    if how == "raise":
        raise RuntimeError("the arm fell off")
    if how == "leave":
        sys.exit(3)
    if how == "exit":
        os._exit(7)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        time.sleep(600)
    if how == "hang hard":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


class BreaksByLane(Walk):
    """Hangs when its first file exists, and raises when its second one does; both are removed first."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__()
        self.paths = paths

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        for path, how in zip(self.paths, ("hang", "raise"), strict=True):
            if os.path.exists(path):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                    strike(how)
        return super().step(action)
