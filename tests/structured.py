"""Environments with every kind of space, whose observations tell what happened to them: the lane's actions and age."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

NUMBERS = spaces.Box(-np.inf, np.inf, (3,), np.float32)
OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "box": NUMBERS,
    "scalar": spaces.Box(-np.inf, np.inf, (), np.float32),
    "choice": spaces.Discrete(8, start=1),
    "choices": spaces.MultiDiscrete([8, 3], start=[2, 0]),
    "grid of choices": spaces.MultiDiscrete([[8, 3], [2, 2]]),
    "bits": spaces.MultiBinary(3),
    "image": spaces.Box(0, 255, (8, 8, 1), np.uint8),
    "dict": spaces.Dict({"numbers": NUMBERS, "choice": spaces.Discrete(8),
                         "image": spaces.Box(0, 255, (1, 8, 8), np.uint8)}),
    "tuple": spaces.Tuple((NUMBERS, spaces.MultiDiscrete([8, 3]))),
    "nested": spaces.Dict({"a": spaces.Tuple((NUMBERS, spaces.Dict({"b": spaces.MultiBinary((2, 2))}))), "c": NUMBERS}),
    "text": spaces.Dict({"say": spaces.Text(5, charset="abcdefg"), "numbers": NUMBERS}),
}  # fmt: skip
ACTIONS: dict[str, spaces.Space[Any]] = {
    "choice": spaces.Discrete(3, start=1),
    "numbers": spaces.Box(-1.0, 2.0, (2,), np.float32),
    "choices": spaces.MultiDiscrete([2, 3]),
    "grid of choices": spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [0, 5]]),
    "bits": spaces.MultiBinary((2, 2)),
    "hybrid dict": spaces.Dict({"go": spaces.Discrete(3), "push": spaces.Box(-1.0, 1.0, (2,), np.float32),
                                "turn": spaces.MultiDiscrete([2, 3])}),
    "hybrid tuple": spaces.Tuple((spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(4, start=2))),
}  # fmt: skip


def observe(space: Any, age: int, seed: int) -> Any:
    """Makes the observation of an age in any space, the same for the same seed."""
    generator = np.random.default_rng((seed, age))
    match space:
        case spaces.Dict():
            return {key: observe(below, age, seed) for key, below in space.spaces.items()}
        case spaces.Tuple():
            return tuple(observe(below, age, seed) for below in space.spaces)
        case spaces.Text():
            return "abcdefg"[age : age + 3]
        case spaces.Box() if space.dtype == np.uint8:
            return generator.integers(0, 255, space.shape, np.uint8)
        case spaces.Box():
            return np.asarray(age + generator.random(space.shape), np.float32)
        case spaces.Discrete():
            return space.start + age % space.n
        case spaces.MultiDiscrete():
            return space.start + age % space.nvec
        case _:
            return (generator.random(space.shape) < 0.5).astype(np.int8)


class Structured(gymnasium.Env[Any, Any]):
    """Five steps, or seven, in any pair of spaces; larger actions are worth more. Masks are where `masks` says.

    At first everything is allowed; then only the first option of each choice at odd ages, and all but the last of more
    than two at even ones.
    """

    def __init__(self, obs: str = "box", action: str = "choice", masks: str = "", *, endless: bool = False) -> None:
        self.inner_space = OBSERVATIONS[obs]
        self.observation_space = self.inner_space
        self.action_space = ACTIONS[action]
        self.masks, self.endless = masks, endless
        self.age, self.seed, self.given = 0, 0, []
        if masks == "obs":
            inner = self.inner_space.spaces if isinstance(self.inner_space, spaces.Dict) else {"seen": self.inner_space}
            self.observation_space = spaces.Dict({**inner, "action_mask": spaces.MultiBinary(len(self.mask()))})
        if masks == "method":
            self.action_masks = self.mask

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed = int(self.np_random.integers(1000))
        self.age = 0
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(as_declared(self.action_space, action)), action
        if self.masks:
            mask = self.mask()
            assert all(mask[place] for place in self.places(action)), f"{action} is forbidden by {mask}"
        self.given.append(action)
        self.age += 1
        length = 5 + 2 * (self.seed % 2)
        ended = self.age == length and not self.endless
        reward = 1.0 + 0.1 * self.seed + 0.1 * worth(action)
        return self.observe(), reward, ended and length == 5, ended and length == 7, self.info()

    def observe(self) -> Any:
        seen = observe(self.inner_space, self.age, self.seed)
        if self.masks != "obs":
            return seen
        return {**(seen if isinstance(seen, dict) else {"seen": seen}), "action_mask": self.mask().astype(np.int8)}

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()} if self.masks == "info" else {}

    def mask(self) -> Any:
        return np.concatenate([self._allowed(size) for size in discrete_sizes(self.action_space)])

    def _allowed(self, size: int) -> Any:
        places = np.arange(size)
        if self.age == 0:
            return places >= 0
        return places == 0 if self.age % 2 else places < max(2, size - 1)

    def places(self, action: Any) -> list[int]:
        """Returns the columns of the mask that an action chose."""
        sizes, chosen = discrete_sizes(self.action_space), choices_of(self.action_space, action)
        starts = np.cumsum([0, *sizes[:-1]])
        return [int(start + choice) for start, choice in zip(starts, chosen, strict=True)]


def worth(action: Any) -> float:
    if isinstance(action, dict | tuple):
        return sum(worth(part) for part in (action.values() if isinstance(action, dict) else action))
    return float(np.sum(action))


def discrete_sizes(space: Any) -> list[int]:
    match space:
        case spaces.Dict():
            return [size for below in space.spaces.values() for size in discrete_sizes(below)]
        case spaces.Tuple():
            return [size for below in space.spaces for size in discrete_sizes(below)]
        case spaces.Discrete():
            return [int(space.n)]
        case spaces.MultiDiscrete():
            return [int(n) for n in space.nvec.ravel()]
        case spaces.MultiBinary():
            return [2] * int(np.prod(space.shape))
        case _:
            return []


def choices_of(space: Any, action: Any) -> list[int]:
    """Returns the choices of an action of the environment, counted from zero."""
    match space:
        case spaces.Dict():
            return [c for key, below in space.spaces.items() for c in choices_of(below, action[key])]
        case spaces.Tuple():
            return [c for i, below in enumerate(space.spaces) for c in choices_of(below, action[i])]
        case spaces.Discrete() | spaces.MultiDiscrete():
            return [int(c) for c in np.ravel(np.asarray(action) - space.start)]
        case spaces.MultiBinary():
            return [int(c) for c in np.ravel(action)]
        case _:
            return []


def as_declared(space: Any, action: Any) -> Any:
    """Gives numbers the dtype that Gymnasium's `contains` insists on; shape, names and range stay as they are."""
    match space:
        case spaces.Dict():
            return {key: as_declared(below, action[key]) for key, below in space.spaces.items()}
        case spaces.Tuple():
            return tuple(as_declared(below, action[i]) for i, below in enumerate(space.spaces))
        case spaces.Discrete():
            return action
        case _:
            return np.asarray(action).astype(space.dtype)
