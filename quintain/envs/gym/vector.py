"""Gymnasium vector environments, used as they are, in any of the three autoreset modes.

All modes are converted to one meaning: a step's `obs` is the next observation to act on, and `final_obs` is the true
last observation of the episode. The mode is read from `metadata["autoreset_mode"]`; an environment that does not
declare one is refused, because a wrong guess would silently mix the last observation of one episode with the first of
the next.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from quintain.core.state import restore_generator, save_generator
from quintain.data import fields as f
from quintain.data.env_values import from_env, is_in_range, to_env
from quintain.data.spec import build, discrete_sizes, flatten, leaves
from quintain.envs.base import EPISODE, SUCCESS, Env, StepResult
from quintain.envs.gym.masks import MASK, MaskSource, checked_rows, declared_mask, mask_notes, masked, read_mask
from quintain.envs.gym.spaces import behavior_spec, text_notes
from quintain.envs.parameters import Parameters, require_attributes, set_lane_values
from quintain.envs.truths import NO_NUMBERS, truths
from quintain.errors import EnvError

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.envs.gym.protocols import GymVectorEnv, Returned
    from quintain.typing import Action, Array, Info, LaneIds, LaneMask, Observation, State


class VectorEnv(Env):
    """Steps one Gymnasium vector environment."""

    def __init__(
        self,
        name: str,
        env: GymVectorEnv,
        rng: Rng,
        *,
        encode_text: bool = False,
        first_lane: int = 0,
        use_masks: bool = True,
        metric_names: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.env = env
        self.metric_names = (SUCCESS, *metric_names)
        # Such an environment seeds all its lanes from one number, so ranks must not give it the same one.
        self.rng = rng.child(f"lanes_from_{first_lane}") if first_lane else rng
        self.first_lane = first_lane
        self.num_lanes = int(env.num_envs)
        self.autoreset = _autoreset_mode(name, env)
        self.why_statistical = _first_unsaved(env)
        self.has_started = False
        self.first_reset: tuple[Observation, Info] | None = None
        self._describe(encode_text, use_masks)
        self.obs_leaves = leaves(self.spec.obs, f.OBS)
        self.obs = {n: np.zeros((self.num_lanes, *s.shape), dtype=s.dtype) for n, s in self.obs_leaves.items()}
        self.final_obs = {name: np.zeros_like(rows) for name, rows in self.obs.items()}
        self.obs_view = build(self.spec.obs, self.obs, f.OBS)
        self.final_view = build(self.spec.obs, self.final_obs, f.OBS)
        size = self.spec.mask_size
        self.mask: Array | None = np.ones((self.num_lanes, size), np.bool_) if size else None
        self.ended: Array = np.zeros(self.num_lanes, dtype=np.bool_)

    def _describe(self, encode_text: bool, use_masks: bool) -> None:
        """Determines the spec, and whether there are masks."""
        env = self.env
        spaces = (self.name, env.single_observation_space, env.single_action_space)
        spec = behavior_spec(*spaces, encode_text=encode_text)
        self.mask_source: MaskSource = (
            declared_mask(env, env.single_observation_space, spec.action) if use_masks else ""
        )
        if self.mask_source == "obs":
            spec = behavior_spec(*spaces, encode_text=encode_text, leave_out=MASK)
        elif use_masks and not self.mask_source and discrete_sizes(spec.action):
            # Only a reset shows what is in info; it is not repeated when the first one is asked for.
            self.first_reset = env.reset(seed=self.rng.seed_for("reset"))
            self.mask_source = "info" if MASK in (self.first_reset[1] or {}) else ""
        self.spec = masked(spec, self.mask_source)
        notes = text_notes(self.name, env.single_observation_space, encode_text=encode_text)
        self.notes = (*notes, *mask_notes(self.name, self.mask_source))

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        started = np.ones(self.num_lanes, np.bool_) if lanes is None else np.asarray(lanes, dtype=np.bool_)
        if lanes is not None:
            obs, info = self.env.reset(options={"reset_mask": started})
        elif self.first_reset is not None:
            (obs, info), self.first_reset = self.first_reset, None
        else:
            obs, info = self.env.reset(seed=None if self.has_started else self.rng.seed_for("reset"))
        self.has_started = self.has_started or lanes is None
        self.ended[started] = False
        self._store(self.obs, obs)
        self._store_masks(obs, info, started)
        return self.obs_view

    def action_mask(self) -> Array | None:
        return self.mask

    def step(self, action: Action) -> StepResult:
        obs, reward, terminated, truncated, info = self.env.step(self._env_action(action))
        terminated = truths(terminated, self.num_lanes, f"vector env {self.name!r} step() returned terminated")
        truncated = truths(truncated, self.num_lanes, f"vector env {self.name!r} step() returned truncated")
        done = np.logical_or(terminated, truncated)
        valid = None
        if self.autoreset == "NextStep":
            # The lanes that ended at the last step were only reset now; the action did nothing there.
            valid = ~self.ended
            np.copyto(self.ended, done)
            self._store(self.final_obs, obs)
            self._store_masks(obs, info, ~done)
            if self.mask is not None:
                # What follows an end is a reset, whatever is chosen.
                self.mask[done] = True
        elif self.autoreset == "SameStep":
            for lane in np.flatnonzero(done):
                self._store_lane(self.final_obs, int(lane), info["final_obs"])
            self._store_masks(obs, info, np.ones_like(done))
        else:
            self._store_masks(obs, info, ~done)
            if done.any():
                # Copies, because the reset may clear the very arrays that say how the step went.
                reward, terminated, truncated = np.array(reward), np.array(terminated), np.array(truncated)
                self._store(self.final_obs, obs)
                obs, reset_info = self.env.reset(options={"reset_mask": done})
                self._store_masks(obs, reset_info, done)
        self._store(self.obs, obs)
        if done.any() and (said := self._metrics_of(info, done)):
            info = {**info, EPISODE: said}
        return StepResult(self.obs_view, reward, terminated, truncated, self.final_view, valid, info, self.mask)

    def _metrics_of(self, info: Info | None, done: Array) -> Info:
        """Returns the values of info at the end of episodes, one per lane or NaN."""
        # Where lanes are reset in the same step, what was said at the end is kept apart.
        last = (info or {}).get("final_info", info or {})
        found: Info = {}
        for name in self.metric_names if isinstance(last, Mapping) else ():
            key = "success" if name == SUCCESS and name not in last else name
            values = np.asarray(last.get(key, ()))
            if values.shape == (self.num_lanes,) and values.dtype.kind in "biuf":
                given = np.asarray(last.get(f"_{key}", done), dtype=np.bool_)
                found[name] = np.where(done & given, values, np.nan)
        return found

    def _env_action(self, action: Action) -> Action:
        chosen = flatten(self.spec.action, action, f.ACTION)
        action_leaves = leaves(self.spec.action, f.ACTION)
        given = {name: to_env(leaf, chosen[name].cpu().numpy()) for name, leaf in action_leaves.items()}
        return build(self.spec.action, given, f.ACTION)

    def _store(self, rows: Mapping[str, Array], obs: Observation) -> None:
        for name, value in flatten(self.spec.obs, obs, f.OBS).items():
            self._store_leaf(rows[name], name, value)

    def _store_lane(self, rows: Mapping[str, Array], lane: int, final_obs: Observation) -> None:
        # Gymnasium's own vector environments keep one observation per lane; arrays of all lanes are as good.
        is_by_lane = isinstance(final_obs, np.ndarray | list)
        of_lane = final_obs[lane] if is_by_lane else final_obs
        for name, value in flatten(self.spec.obs, of_lane, f.OBS).items():
            self._store_leaf(rows[name][lane, ...], name, value if is_by_lane else value[lane])

    def _store_leaf(self, memory: Array, name: str, value: Returned) -> None:
        leaf = self.obs_leaves[name]
        stored = np.asarray(from_env(leaf, value))
        if stored.dtype.kind in NO_NUMBERS:
            raise EnvError(
                f"vector env {self.name!r} returned {name} of dtype {stored.dtype}, which holds no numbers; declared "
                f"{leaf} for each of {self.num_lanes} lanes",
                code="E0511",
            )
        if stored.shape != memory.shape or not is_in_range(leaf, stored):
            raise EnvError(
                f"vector env {self.name!r} returned {name} of shape {stored.shape}, or with discrete values that it "
                f"did not declare; declared {leaf} for each of {self.num_lanes} lanes",
                code="E0511",
            )
        np.copyto(memory, stored, casting="same_kind")

    def _store_masks(self, obs: Observation, info: Info | None, wanted: Array) -> None:
        """Stores the masks of the given lanes only."""
        if self.mask is None or not wanted.any():
            return
        found = read_mask(self.name, self.mask_source, self.env, obs, info)
        given = (info or {}).get(f"_{MASK}") if self.mask_source == "info" else None
        if given is not None and (wanted & ~np.asarray(given)).any():
            raise EnvError(f"vector env {self.name!r} gave an {MASK} in info for some lanes only", code="E0515")
        self.mask[wanted] = checked_rows(self.name, self.spec.action, found, wanted)

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        set_lane_values(self.env.unwrapped, self.name, values, lanes, self.num_lanes)

    def require_parameters(self, names: Sequence[str]) -> None:
        require_attributes(self.env.unwrapped, self.name, names, self.num_lanes)

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
        mask = None if self.mask is None else self.mask.copy()
        own = {"obs": obs, "mask": mask, "ended": self.ended.copy(), "has_started": self.has_started}
        return {**own, "layers": [_save_attributes(layer) for layer in _layers(self.env)]}

    def load_state_dict(self, state: State) -> None:
        for name, rows in self.obs.items():
            np.copyto(rows, state["obs"][name])
        if self.mask is not None:
            np.copyto(self.mask, state["mask"])
        self.first_reset = None
        np.copyto(self.ended, state["ended"])
        self.has_started = state["has_started"]
        if not self.why_statistical:
            for layer, saved in zip(_layers(self.env), state["layers"], strict=True):
                _restore_attributes(layer, saved)
        elif self.has_started:
            # What this environment holds cannot be put back, so every lane starts a new episode.
            self.has_started = False
            self.reset()


def _autoreset_mode(name: str, env: GymVectorEnv) -> str:
    mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
    value = getattr(mode, "value", mode)
    if value not in {"NextStep", "SameStep", "Disabled"}:
        raise EnvError(
            f'vector env {name!r} does not say how it resets (metadata["autoreset_mode"] is {value!r}). '
            f"Set it to gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED",
            code="E0514",
        )
    return str(value)


def _layers(env: GymVectorEnv) -> list[GymVectorEnv]:
    """Returns the wrappers around a vector environment and the environment itself, outermost first."""
    layers = [env]
    while "env" in vars(layers[-1]) and hasattr(inner := vars(layers[-1])["env"], "step"):
        layers.append(inner)
    return layers


def _is_saved(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    return isinstance(value, np.random.Generator | np.generic | bool | int | float | type(None))


def _save_attributes(layer: GymVectorEnv) -> State:
    saved: State = {}
    for name, value in vars(layer).items():
        if isinstance(value, np.random.Generator):
            saved[name] = save_generator(value)
        elif isinstance(value, np.ndarray) and value.dtype != object:
            saved[name] = value.copy()
        elif _is_saved(value) and not (isinstance(value, float) and not np.isfinite(value)):
            saved[name] = value
    return saved


def _restore_attributes(layer: GymVectorEnv, saved: State) -> None:
    for name, value in saved.items():
        if isinstance(value, dict):
            setattr(layer, name, restore_generator(value))
        elif isinstance(value, np.ndarray):
            setattr(layer, name, np.array(value))
        else:
            now = getattr(layer, name, None)
            # A file makes Python numbers of numpy's, which would round differently.
            setattr(layer, name, type(now)(value) if isinstance(now, np.generic) else value)


def _first_unsaved(env: GymVectorEnv) -> str:
    """Returns the first attribute that may hold state this adapter cannot save, or None."""
    for layer in _layers(env):
        for name, value in vars(layer).items():
            if name not in _DESCRIPTIONS and not _is_saved(value) and not _is_constant(value):
                return f"{type(layer).__name__}.{name} cannot be saved"
    return ""


_DESCRIPTIONS = frozenset({"env", "metadata", "spec"})


def _is_constant(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_constant(item) or isinstance(item, int | float) for item in value)
    # Spaces draw numbers only for those who sample from them, which is not how policies act.
    return isinstance(value, str | bytes | type | enum.Enum | FunctionType | gymnasium.Space)
