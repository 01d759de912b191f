"""Checks an environment's interface and its returned values: one sentence per finding, with the fix."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from quintain.core.rng import Rng
from quintain.envs.check.play import Played
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.make import lane_options
from quintain.envs.gym.masks import MASK, declared_mask
from quintain.envs.gym.spaces import behavior_spec
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.settings import GymSettings
from quintain.errors import QuintainError
from quintain.services.user_code import ANYTHING

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv, Returned, Space
    from quintain.typing import Observation

Level: TypeAlias = Literal["ok", "note", "warning", "problem"]
Said: TypeAlias = tuple[Level, str, str, str]
"""Level, name of the check, finding, and fix."""
LARGE = 100.0
"""Absolute value of a reward or an observation from which a network learns badly."""
_RESET = "def reset(self, *, seed=None, options=None) that calls super().reset(seed=seed) and returns (obs, info)"
_STEP = "return (obs, reward, terminated, truncated, info) from step()"


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]


def place(error: BaseException) -> str:
    """Returns the file and line where an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "its code"


def raises(call: str, error: BaseException) -> str:
    return f"{call}() raises {type(error).__name__}: {first_line(error)} ({place(error)})"


def _kind(result: Returned) -> str:
    return f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"


def interface(env: GymEnv) -> Iterator[Said]:
    """Checks that the object is an environment without automatic resets."""
    missing = [name for name in ("reset", "step", "observation_space", "action_space") if not hasattr(env, name)]
    if missing:
        fix = "derive from gymnasium.Env and set both spaces in __init__"
        yield "problem", "interface", f"a {type(env).__name__} without {', '.join(missing)}", fix
        return
    layer: GymEnv | None = env
    while layer is not None:
        if type(layer).__name__ in {"Autoreset", "AutoResetWrapper", "AutoReset"}:
            fix = "leave the wrapper out: every lane is reset where its episode ends, with a seed of its own"
            yield "problem", "autoreset", f"{type(layer).__name__} resets behind the caller's back", fix
            return
        layer = vars(layer).get("env") if hasattr(layer, "__dict__") else None
    if hasattr(env, "num_envs") or hasattr(env, "single_observation_space"):
        fix = "name the single environment, or use vectorization: native for one with a vector entry point"
        yield "problem", "interface", "it is a vector environment; one lane is expected", fix
        return
    yield "ok", "autoreset", "leaves resetting to its caller", ""


def spaces(name: str, env: GymEnv, *, encode_text: bool) -> Iterator[Said]:
    """Checks that the spaces are supported."""
    try:
        spec = behavior_spec(name, env.observation_space, env.action_space, encode_text=encode_text)
        if declared_mask(env, env.observation_space, spec.action) == "obs":
            spec = behavior_spec(name, env.observation_space, env.action_space, encode_text=encode_text, leave_out=MASK)
    except QuintainError as error:
        yield "problem", "spaces", error.message, "use one of the spaces that are supported"
        return
    yield "ok", "spaces", str(spec), ""
    for path, box, _ in _boxes(env.observation_space, "observation"):
        if box.dtype == np.float64:
            yield "note", "dtypes", f"{path} is float64; it is stored and learned from as float32", ""
        if len(box.shape) == 3 and box.dtype != np.uint8 and min(box.shape[:2]) >= 8:
            fix = "return images as uint8 from 0 to 255; they take a quarter of the memory"
            yield "warning", "dtypes", f"{path} looks like an image of {box.dtype}", fix
    for path, box, _ in _boxes(env.action_space, "action"):
        if not (np.isfinite(box.low).all() and np.isfinite(box.high).all()):
            fix = "give low and high; a policy's actions are clipped to them"
            yield "warning", "spaces", f"{path} is not bounded", fix
        elif np.abs(box.low).max() > 10 or np.abs(box.high).max() > 10 or (box.low + box.high != 0).any():
            fix = "use [-1, 1] and scale inside step(), or wrap it with gymnasium.wrappers.RescaleAction"
            yield "warning", "spaces", f"{path} is not symmetric around 0, or far from 1 in size: {box}", fix


def _boxes(space: Space, path: str, value: Observation = None) -> Iterator[tuple[str, Space, Observation]]:
    """Yields every Box in a tree of spaces, with the value at its place."""
    below = getattr(space, "spaces", None)
    if below is not None:
        for key, inner in below.items() if hasattr(below, "items") else enumerate(below):
            yield from _boxes(inner, f"{path}.{key}", None if value is None else value[key])
    elif type(space).__name__ == "Box":
        yield path, space, value


def first_reset(env: GymEnv, seed: int) -> Iterator[Said]:
    """Checks `reset(seed=...)` and its result."""
    try:
        result = env.reset(seed=seed)
    except TypeError as error:
        if "seed" not in str(error):
            yield "problem", "reset", raises("reset", error), "look there"
            return
        yield "problem", "reset", f"reset() takes no seed: {first_line(error)}", _RESET
        return
    except ANYTHING as error:
        yield "problem", "reset", raises("reset", error), "look there"
        return
    if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
        yield "problem", "reset", f"reset() returns {_kind(result)} instead of (obs, info)", _RESET
        return
    wrong = misfit(env.observation_space, result[0], "the first observation")
    if wrong:
        yield "problem", "observations", wrong, "make the observation and observation_space agree"


def steps(env: GymEnv, played: Played) -> Iterator[Said]:
    """Checks each value that steps returned."""
    if played.odd_step is not None:
        yield "problem", "step", f"step() returns {_kind(played.odd_step)} instead of five things", _STEP
        return
    if played.error is not None:
        after = f" after {len(played.rewards)} steps" if played.rewards else ""
        yield "problem", played.error_call, raises(played.error_call, played.error) + after, "look there"
        return
    for number, obs in enumerate(played.observations):
        if wrong := misfit(env.observation_space, obs, f"observation {number}"):
            yield "problem", "observations", wrong, "make the observation and observation_space agree"
            return
    yield "ok", "observations", f"{len(played.observations)} are as declared", ""
    for path, box, value in _boxes(env.observation_space, "observation", played.observations[0]):
        if np.asarray(value).dtype != box.dtype:
            what = f"{path} is {np.asarray(value).dtype}, declared {box.dtype}; it is converted at every step"
            yield "note", "dtypes", what, f"return it as {box.dtype}"
    for number, reward in enumerate(played.rewards):
        if wrong := _odd_reward(reward):
            yield "problem", "rewards", f"step {number + 1} returns {wrong}", "return a finite float"
            return
    odd = [e for e in (*played.terminated, *played.truncated) if not isinstance(e, bool | np.bool_)]
    if odd:
        what = f"terminated or truncated is a {type(odd[0]).__name__}, such as {odd[0]!r}"
        yield "warning", "ends", what, "return bool(...) for both"
    if not all(isinstance(info, Mapping) for info in played.infos):
        yield "problem", "step", "info is not a dict", "return a dict, if only an empty one"


def _odd_reward(reward: Returned) -> str:
    if np.ndim(reward) > 0:
        return f"a reward of shape {np.shape(reward)}"
    try:
        number = float(reward)
    except (TypeError, ValueError):
        return f"{reward!r} as reward"
    return "" if np.isfinite(number) else f"a reward of {number}"


def misfit(space: Space, value: Returned, what: str) -> str:
    """Describes how a value differs from its space; empty if it belongs to it."""
    below = getattr(space, "spaces", None)
    if below is not None:
        entries = list(below.items()) if hasattr(below, "items") else list(enumerate(below))
        for key, inner in entries:
            try:
                part = value[key]
            except (KeyError, IndexError, TypeError):
                return f"{what} has no {key!r}, which is declared"
            if wrong := misfit(inner, part, f"{what}, entry {key!r},"):
                return wrong
        return ""
    if type(space).__name__ != "Box":
        return "" if space.contains(value) else f"{what} {value!r} is not in {space}"
    found = np.asarray(value)
    if found.shape != space.shape:
        return f"{what} has shape {found.shape}, declared {space.shape}"
    if found.dtype.kind not in "fiub":
        return f"{what} is of type {found.dtype}, declared {space.dtype}"
    if np.issubdtype(found.dtype, np.floating) and not np.issubdtype(space.dtype, np.floating):
        return f"{what} is {found.dtype}, declared {space.dtype}"
    if not np.isfinite(found).all():
        return f"{what} is not finite: {found.ravel()[~np.isfinite(found.ravel())][0]}"
    outside = np.flatnonzero(((found < space.low) | (found > space.high)).ravel())
    if len(outside):
        i = outside[0]
        bounds = f"[{space.low.ravel()[i]:g}, {space.high.ravel()[i]:g}]"
        return f"{what} is {found.ravel()[i]:g} at index {i}, outside the declared {bounds}"
    return ""


def masks(settings: GymSettings, factory: EnvFactory, seed: int) -> Iterator[Said]:
    """Checks that action masks, if any, can be read."""
    try:
        lane = LaneEnv(settings.id, [factory], Rng(seed), **lane_options(settings))
        lane.reset()
        if lane.mask_source:
            yield "ok", "masks", f"action masks of {lane.spec.mask_size} options, in {lane.mask_source}", ""
        lane.close()
    except QuintainError as error:
        yield "problem", "masks", error.message, "see the message"
