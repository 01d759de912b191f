"""Checks statistics of an environment over many steps: episode ends, seeds, scales, speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BoxSpec, flatten, leaves
from quintain.envs.base import Env
from quintain.envs.check.interface import LARGE, Said, raises
from quintain.envs.check.play import Played, legal_action, random_actions
from quintain.envs.gym.spaces import behavior_spec
from quintain.envs.hosts.lane_host import EnvFactory
from quintain.envs.settings import GymSettings
from quintain.services.user_code import ANYTHING

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Array, Observation

_MIN_EPISODES = 3
_SLOW_STEPS_PER_SECOND = 2_000


def ends(played: Played) -> Iterator[Said]:
    """Checks that time limits are reported as truncated, not as terminated."""
    lengths = [length for length, is_terminated in played.episodes if is_terminated]
    if not played.episodes:
        what = f"no episode ended within {len(played.rewards)} steps"
        yield "note", "ends", what, "set max_episode_steps if it has no end of its own"
    elif _is_a_time_limit(lengths) and len(lengths) == len(played.episodes):
        what = f"every episode was terminated after exactly {lengths[0]} steps, which looks like a time limit"
        fix = "return a time limit as truncated, so that what would have followed still counts"
        yield "warning", "ends", what, fix
    elif any("TimeLimit.truncated" in info for info in played.infos):
        fix = "return truncated itself; this key of older versions is not read"
        yield "problem", "ends", 'info["TimeLimit.truncated"] says what truncated should', fix
    else:
        yield "ok", "ends", f"{len(played.episodes)} episodes ended, {len(lengths)} of them terminated", ""


def _is_a_time_limit(lengths: list[int]) -> bool:
    return len(lengths) >= _MIN_EPISODES and len(set(lengths)) == 1 and lengths[0] > 1


def seeds(factory: EnvFactory, seed: int, num_steps: int = 50) -> Iterator[Said]:
    """Checks that the seed determines observations, rewards and ends."""
    one, other, again = factory(), factory(), factory()
    try:
        _prefix(again, seed + 1, 5, seed)
        runs = [_prefix(env, seed, num_steps, seed) for env in (one, other, again)]
        elsewhere = _prefix(one, seed + 1, 0, seed)
    except ANYTHING as error:
        yield "problem", "seeds", raises("reset or step", error), "look there"
        return
    fix = "call super().reset(seed=seed) and draw from self.np_random only"
    for which, name in ((1, "two environments"), (2, "an environment that was played before and a new one")):
        different = [i for i, (a, b) in enumerate(zip(runs[0], runs[which], strict=False)) if a != b]
        if different or len(runs[0]) != len(runs[which]):
            when = "at the first observation" if different[:1] == [0] else f"at step {(different or [num_steps])[0]}"
            yield "problem", "seeds", f"{name} with the same seed and actions differ {when}", fix
            return
    yield "ok", "seeds", f"the same seed gave the same {num_steps} steps, three times", ""
    if elsewhere[0] == runs[0][0]:
        yield "note", "seeds", "another seed begins alike: every episode starts in the same place", ""


def _prefix(env: GymEnv, seed: int, num_steps: int, action_seed: int) -> list[bytes]:
    env.action_space.seed(action_seed)
    obs, info = env.reset(seed=seed)
    seen = [_bytes(obs)]
    for _ in range(num_steps):
        obs, reward, terminated, truncated, info = env.step(legal_action(env, obs, info))
        seen.append(_bytes(obs) + repr((float(reward), bool(terminated), bool(truncated))).encode())
        if terminated or truncated:
            break
    return seen


def _bytes(obs: Observation) -> bytes:
    if isinstance(obs, Mapping):
        return b"".join(_bytes(obs[key]) for key in sorted(obs))
    if isinstance(obs, tuple):
        return b"".join(map(_bytes, obs))
    return str(obs).encode() if isinstance(obs, str) else np.asarray(obs).tobytes()


def scales(settings: GymSettings, env: GymEnv, played: Played) -> Iterator[Said]:
    """Checks that observations and rewards have a scale that a network can learn from."""
    numbers = np.array([float(reward) for reward in played.rewards])
    size = float(np.abs(numbers).max()) if len(numbers) else 0.0
    if size > LARGE:
        fix = "set normalize_reward=true, or scale rewards so that a step is worth about 1"
        yield "warning", "scale", f"rewards reach {size:g}", fix
    elif size == 0.0:
        fix = "see whether random actions can ever earn one"
        yield "warning", "scale", f"every one of {len(numbers)} rewards was 0", fix
    else:
        yield "ok", "scale", f"rewards from {numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.3g}", ""
    encode_text = settings.text_observations == "encode"
    spec = behavior_spec(settings.id, env.observation_space, env.action_space, encode_text=encode_text)
    known = leaves(spec.obs, f.OBS)
    for name, rows in _columns(played.observations).items():
        # Discrete values are encoded one by one and have no scale; what the policy does not see needs none.
        leaf = known.get(name)
        if not isinstance(leaf, BoxSpec) or rows.dtype == np.uint8:
            continue
        largest = float(np.abs(rows).max())
        if largest > LARGE:
            fix = (
                "scale it to about 1: images are not normalized"
                if leaf.is_image
                else "set normalize_obs=true, or scale it"
            )
            yield "warning", "scale", f"{name} reaches {largest:g}", fix
        elif len(rows) > 1 and (rows == rows[0]).all():
            yield "note", "scale", f"{name} never changed", ""


def _columns(observations: list[Observation], name: str = "obs") -> dict[str, Array]:
    first = observations[0]
    if isinstance(first, Mapping | tuple):
        keys = list(first) if isinstance(first, Mapping) else range(len(first))
        below = [_columns([obs[key] for obs in observations], f"{name}.{key}") for key in keys]
        return {path: rows for part in below for path, rows in part.items()}
    return {} if isinstance(first, str) else {name: np.stack([np.asarray(obs) for obs in observations])}


def speed(played: Played, num_workers: int) -> Iterator[Said]:
    """Reports the steps per second, and whether workers would help."""
    rate = len(played.rewards) / max(played.seconds, 1e-9)
    fix = ""
    if rate < _SLOW_STEPS_PER_SECOND and num_workers > 1:
        fix = f"let processes share the work: env_workers.num_workers={num_workers}"
    yield ("note" if fix else "ok"), "speed", f"{rate:,.0f} steps/s in one process", fix


def closing(env: GymEnv) -> Iterator[Said]:
    """Checks that the environment can be closed twice, as happens when runs fail."""
    try:
        env.close()
        env.close()
    except ANYTHING as error:
        yield "warning", "close", raises("close", error), "let close() be called at any time, also twice"


def lanes(make: Callable[[int, Rng], Env], num_steps: int, seed: int) -> Iterator[Said]:
    """Checks a vectorized environment: shapes, and that a saved state continues identically."""
    try:
        env, other = make(2, Rng(seed)), make(2, Rng(seed))
    except ANYTHING as error:
        yield "problem", "creation", raises("making it", error), "look there"
        return
    yield "ok", "creation", f"{env.num_lanes} lanes, {env.spec}", ""
    try:
        if wrong := list(_wrong_shapes(env, env.reset(), "reset")):
            yield wrong[0]
            return
        saved_at = num_steps // 2
        for step in range(num_steps):
            if step == saved_at:
                other.load_state_dict(env.state_dict())
            action = random_actions(env.spec, env.num_lanes, Rng(seed).generator("check", step), env.action_mask())
            result = env.step(action)
            if wrong := list(_wrong_shapes(env, result.obs, "step")):
                yield wrong[0]
                return
            twin = other.step(action) if step >= saved_at else result
            if any((np.asarray(a) != np.asarray(b)).any() for a, b in zip(result[1:4], twin[1:4], strict=True)):
                what = f"a copy made from its saved state goes another way after {step - saved_at + 1} steps"
                yield "problem", "state", what, "keep what changes in tensors, arrays, numbers or generators of self"
                return
    except ANYTHING as error:
        yield "problem", "step", raises("reset or step", error), "look there"
        return
    yield "ok", "state", "a copy made from its saved state continued alike", ""
    yield "ok", "exactness", env.exactness, ""


def _wrong_shapes(env: Env, obs: Observation, call: str) -> Iterator[Said]:
    declared = leaves(env.spec.obs, f.OBS)
    for name, rows in flatten(env.spec.obs, obs, f.OBS).items():
        expected = (env.num_lanes, *declared[name].shape)
        if tuple(rows.shape) != expected:
            what = f"{call}() returns {name} of shape {tuple(rows.shape)}, declared {expected}"
            yield "problem", "observations", what, "make the observation and the spec agree"
