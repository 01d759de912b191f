"""Vector environments that Gymnasium users already have, taken as they are, in any of the three autoreset modes.

All modes are brought to one meaning: a step's `obs` is what to act on next and `final_obs` is how the episode really
ended. The mode is read from `metadata["autoreset_mode"]`; an environment that does not declare one is refused, because
a guess would silently mix the last observation of one episode with the first of the next.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from quintain.data import fields as f
from quintain.data.spec import DiscreteSpec, build, flatten, leaves
from quintain.envs.base import Env, StepResult
from quintain.envs.parameters import Parameters, set_lane_values
from quintain.envs.spaces import as_array, behavior_spec, leaf_spaces
from quintain.errors import EnvError
from quintain.state import restore_generator, save_generator

if TYPE_CHECKING:
    from quintain.rng import Rng
    from quintain.typing import Array, State


class VectorEnv(Env):
    """Steps one Gymnasium vector environment."""

    def __init__(self, name: str, env: Any, rng: Rng) -> None:
        self.name = name
        self.env = env
        self.rng = rng
        self.num_lanes = int(env.num_envs)
        self.autoreset = _autoreset_mode(name, env)
        self.spec = behavior_spec(name, env.single_observation_space, env.single_action_space)
        self.obs_leaves = leaves(self.spec.obs, f.OBS)
        self.obs_spaces = leaf_spaces(self.spec.obs, env.single_observation_space, f.OBS)
        self.obs = {n: np.zeros((self.num_lanes, *s.shape), dtype=s.dtype) for n, s in self.obs_leaves.items()}
        self.final_obs = {name: np.zeros_like(rows) for name, rows in self.obs.items()}
        self.obs_view = build(self.spec.obs, self.obs, f.OBS)
        self.final_view = build(self.spec.obs, self.final_obs, f.OBS)
        self.ended: Array = np.zeros(self.num_lanes, dtype=np.bool_)
        self.has_started = False
        self.why_statistical = _first_unsaved(env)

    def reset(self, lanes: Any = None) -> Any:
        if lanes is None:
            obs, _ = self.env.reset(seed=None if self.has_started else self.rng.seed_for("reset"))
            self.has_started = True
            self.ended.fill(False)
        else:
            mask = np.asarray(lanes, dtype=np.bool_)
            obs, _ = self.env.reset(options={"reset_mask": mask})
            self.ended[mask] = False
        self._store(self.obs, obs)
        return self.obs_view

    def step(self, action: Any) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(self._env_action(action))
        done = np.logical_or(terminated, truncated)
        valid = None
        if self.autoreset == "NextStep":
            # The lanes that ended at the last step were only reset now; the action did nothing there.
            valid = ~self.ended
            np.copyto(self.ended, done)
            self._store(self.final_obs, obs)
        elif self.autoreset == "SameStep":
            for lane in np.flatnonzero(done):
                self._store_lane(self.final_obs, int(lane), info["final_obs"][lane])
        elif done.any():
            # Copies, because the reset may clear the very arrays that say how the step went.
            reward, terminated, truncated = np.array(reward), np.array(terminated), np.array(truncated)
            self._store(self.final_obs, obs)
            obs, _ = self.env.reset(options={"reset_mask": done})
        self._store(self.obs, obs)
        return StepResult(self.obs_view, reward, terminated, truncated, self.final_view, valid, info)

    def _env_action(self, action: Any) -> Any:
        chosen = {name: leaf.cpu().numpy() for name, leaf in flatten(self.spec.action, action, f.ACTION).items()}
        for name, spec in leaves(self.spec.action, f.ACTION).items():
            if isinstance(spec, DiscreteSpec) and spec.start:
                chosen[name] = chosen[name] + spec.start
        return build(self.spec.action, chosen, f.ACTION)

    def _store(self, rows: Mapping[str, Array], obs: Any) -> None:
        for name, value in flatten(self.spec.obs, obs, f.OBS).items():
            leaf = self.obs_leaves[name]
            shift = leaf.start if isinstance(leaf, DiscreteSpec) else 0
            values = np.asarray(value).reshape(rows[name].shape)
            np.copyto(rows[name], values - shift if shift else values, casting="same_kind")

    def _store_lane(self, rows: Mapping[str, Array], lane: int, obs: Any) -> None:
        for name, value in flatten(self.spec.obs, obs, f.OBS).items():
            rows[name][lane] = as_array(self.obs_leaves[name], self.obs_spaces[name], value)

    def set_parameters(self, values: Parameters, lanes: Any = None) -> None:
        set_lane_values(self.env.unwrapped, self.name, values, lanes, self.num_lanes)

    @property
    def can_reset_lanes(self) -> bool:
        # Gymnasium resets some lanes by `reset_mask`, which environments that reset by themselves do not take.
        return self.autoreset == "Disabled"

    def render(self) -> Array | None:
        frames = self.env.render()
        return None if frames is None else np.asarray(frames[0])

    @property
    def frames_per_second(self) -> float:
        return float((getattr(self.env, "metadata", None) or {}).get("render_fps", 30))

    def close(self) -> None:
        self.env.close()

    @property
    def exactness(self) -> str:
        return f"statistical: {self.why_statistical}" if self.why_statistical else "exact"

    def state_dict(self) -> State:
        obs = {name: rows.copy() for name, rows in self.obs.items()}
        own = {"obs": obs, "ended": self.ended.copy(), "has_started": self.has_started}
        return {**own, "layers": [_save_attributes(layer) for layer in _layers(self.env)]}

    def load_state_dict(self, state: State) -> None:
        for name, rows in self.obs.items():
            np.copyto(rows, state["obs"][name])
        np.copyto(self.ended, state["ended"])
        self.has_started = state["has_started"]
        if not self.why_statistical:
            for layer, saved in zip(_layers(self.env), state["layers"], strict=True):
                _restore_attributes(layer, saved)
        elif self.has_started:
            # What this environment holds cannot be put back, so every lane starts a new episode.
            self.has_started = False
            self.reset()


def _autoreset_mode(name: str, env: Any) -> str:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    value = getattr(mode, "value", mode)
    if value not in {"NextStep", "SameStep", "Disabled"}:
        raise EnvError(
            f'vector env {name!r} does not say how it resets (metadata["autoreset_mode"] is {value!r}). '
            f"Set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED",
            code="E0514",
        )
    return str(value)


def _layers(env: Any) -> list[Any]:
    """Returns the wrappers around a vector environment and the environment itself, outermost first."""
    layers = [env]
    while "env" in vars(layers[-1]) and hasattr(layers[-1].env, "step"):
        layers.append(layers[-1].env)
    return layers


def _is_saved(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    return isinstance(value, np.random.Generator | np.generic | bool | int | float | type(None))


def _save_attributes(layer: Any) -> State:
    saved: State = {}
    for name, value in vars(layer).items():
        if isinstance(value, np.random.Generator):
            saved[name] = save_generator(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            saved[name] = value.copy()
        elif _is_saved(value) and not (isinstance(value, float) and not np.isfinite(value)):
            saved[name] = value
    return saved


def _restore_attributes(layer: Any, saved: State) -> None:
    for name, value in saved.items():
        if isinstance(value, dict):
            setattr(layer, name, restore_generator(value))
        elif isinstance(value, np.ndarray):
            setattr(layer, name, np.array(value))
        else:
            now = getattr(layer, name, None)
            # A file makes Python numbers of numpy's, which would round differently.
            setattr(layer, name, type(now)(value) if isinstance(now, np.generic) else value)


def _first_unsaved(env: Any) -> str:
    """Names the first attribute that may hold state this adapter cannot save, or nothing."""
    for layer in _layers(env):
        for name, value in vars(layer).items():
            if name not in _DESCRIPTIONS and not _is_saved(value) and not _is_constant(value):
                return f"{type(layer).__name__}.{name} cannot be saved"
    return ""


_DESCRIPTIONS = frozenset({"env", "metadata", "spec"})


def _is_constant(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(item) or isinstance(item, int | float) for item in value)
    # Spaces draw numbers only for those who sample from them, which is not how policies act.
    return isinstance(value, str | bytes | type | enum.Enum | FunctionType | gymnasium.Space)
