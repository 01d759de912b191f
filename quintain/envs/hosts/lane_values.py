"""Validates and writes results of environments to rows, and reads actions from them.

Any value that does not fit the spec raises an EnvError here, instead of a later error with another message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from quintain.data import fields as f
from quintain.data.env_values import from_env, is_in_range, to_env
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec, build, flatten, leaves
from quintain.envs.base import SUCCESS
from quintain.envs.gym.masks import MaskSource, checked_rows, read_mask
from quintain.envs.hosts.lane_rows import LaneRows
from quintain.envs.truths import NO_NUMBERS, truth
from quintain.errors import EnvError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quintain.envs.gym.protocols import GymEnv, Returned
    from quintain.typing import Action, Array, Info, Observation

CONTINUES = "episode_continues"
"""Entry of info at the end of an episode after which the same game goes on, as Atari's after a lost life."""
_ONE = np.ones(1, np.bool_)
_TRUTHS = frozenset({bool, np.bool_})
_RETURNS = {"reset": "(obs, info)", "step": "(obs, reward, terminated, truncated, info)"}
_LENGTHS = {"reset": 2, "step": 5}
_AGREE = "Make the observation and observation_space agree"


class LaneValues:
    """Writes into and reads from the rows of an environment's lanes."""

    def __init__(
        self,
        name: str,
        spec: BehaviorSpec,
        rows: LaneRows,
        mask_source: MaskSource,
        metric_names: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.spec = spec
        self.rows = rows
        self.mask_source = mask_source
        self.metric_names = metric_names
        self.obs_leaves = leaves(spec.obs, f.OBS)
        self.action_leaves = leaves(spec.action, f.ACTION)
        self.has_plain_obs = isinstance(spec.obs, BoxSpec)
        self.whole_leaves = {name for name, values in rows.obs.items() if values.dtype.kind != "f"}
        has_floats_only = self.has_plain_obs and not self.whole_leaves
        self.float_shape = rows.obs[f.OBS].shape[1:] if has_floats_only else None

    def actions(self, lanes: Sequence[int]) -> Sequence[Action] | Array:
        """Returns one action per lane, in the environment's own format.

        Environments may store the action: discrete ones are ints, continuous ones rows of a fresh array.
        """
        columns: dict[str, Sequence[Action] | Array] = {}
        for name, leaf in self.action_leaves.items():
            chosen = self.rows.action[name]
            rows = to_env(leaf, chosen[lanes] if len(lanes) != len(chosen) else chosen)
            columns[name] = rows.tolist() if isinstance(leaf, DiscreteSpec) else rows
        if len(columns) == 1 and f.ACTION in columns:
            return columns[f.ACTION]
        return [
            build(self.spec.action, {k: rows[i] for k, rows in columns.items()}, f.ACTION) for i in range(len(lanes))
        ]

    def store_step(self, lane: int, env: GymEnv, result: Returned, *, autoreset: bool) -> bool:
        """Writes the result of a step; returns whether the lane's next episode is to start."""
        if type(result) is not tuple or len(result) != _LENGTHS["step"]:
            refuse_odd_result(self.name, "step", result)
        rows = self.rows
        obs, reward, terminated, truncated, info = result
        self.store_reward(lane, reward)
        if type(terminated) not in _TRUTHS or type(truncated) not in _TRUTHS:
            terminated = truth(terminated, f"env {self.name!r} step() returned terminated")
            truncated = truth(truncated, f"env {self.name!r} step() returned truncated")
        rows.terminated[lane] = terminated
        rows.truncated[lane] = truncated
        is_over = bool(terminated or truncated)
        if is_over:
            rows.continues[lane] = continues = info.get(CONTINUES) is True if isinstance(info, dict) else False
            store_metrics(rows.metrics[lane], self.metric_names, info)
            # A game that goes on is not reset, so that its next episode is reached by playing this one.
            is_over = autoreset or continues
        places = rows.final_obs if is_over else rows.obs
        # One array of floats is what most environments return, at every step of every lane.
        if type(obs) is np.ndarray and obs.shape == self.float_shape and obs.dtype.kind == "f":
            places[f.OBS][lane] = obs
        else:
            self.store_obs(places, lane, obs, "step")
        if rows.mask is not None and not is_over:
            self.store_mask(lane, env, obs, info)
        return is_over

    def store_reward(self, lane: int, reward: Returned) -> None:
        try:
            self.rows.reward[lane] = float(reward)
        except (TypeError, ValueError) as error:
            found = f"of shape {np.shape(reward)}" if np.ndim(reward) else repr(reward)[:80]
            self._refuse(f"step() returned a reward {found}; it must be a number", error)

    def store_obs(self, rows: Mapping[str, Array], lane: int, obs: Observation, call: str) -> None:
        """Writes an observation, as the current one or as the last of its episode."""
        if self.has_plain_obs:
            self._store_leaf(rows[f.OBS], f.OBS, lane, obs, call)
            return
        try:
            named = flatten(self.spec.obs, obs, f.OBS)
        except (KeyError, IndexError, TypeError) as error:
            self._refuse(f"{call}() returned an observation without {error}, declared {self.spec.obs}", error)
        for name, value in named.items():
            self._store_leaf(rows[name], name, lane, from_env(self.obs_leaves[name], value), call)

    def store_mask(self, lane: int, env: GymEnv, obs: Observation, info: Info) -> None:
        """Writes the action mask, if the environment has one."""
        if self.rows.mask is not None:
            found = read_mask(self.name, self.mask_source, env, obs, info)
            self.rows.mask[lane] = checked_rows(self.name, self.spec.action, found, _ONE)[0]

    def _store_leaf(self, rows: Array, name: str, lane: int, value: Returned, call: str) -> None:
        try:
            given = np.asarray(value)
        except ValueError as error:
            self._refuse(f"{call}() returned {name} that is no array ({error}). {_AGREE}", error)
        if given.shape != rows.shape[1:]:
            found = f"of shape {given.shape}" if value is not None else "None"
            self._refuse(f"{call}() returned {name} {found}, declared {self.obs_leaves[name]}. {_AGREE}")
        if given.dtype.kind in NO_NUMBERS:
            self._refuse(f"{call}() returned {name} of dtype {given.dtype}, which holds no numbers. {_AGREE}")
        if not self.has_plain_obs and not is_in_range(self.obs_leaves[name], value):
            self._refuse(
                f"{call}() returned {name} with a discrete value that it did not declare: counted from zero, {value} "
                f"is not in {self.obs_leaves[name]}"
            )
        if name in self.whole_leaves and _loses_digits(value, rows.dtype):
            self._refuse(
                f"{call}() returned {name} as {np.asarray(value).dtype} with values that {rows.dtype}, which it "
                f"declared, cannot hold. {_AGREE}"
            )
        try:
            rows[lane] = value
        except (TypeError, ValueError) as error:
            self._refuse(f"{call}() returned {name} that holds no numbers ({error}). {_AGREE}", error)

    def _refuse(self, what: str, cause: Exception | None = None) -> NoReturn:
        raise EnvError(f"env {self.name!r} {what}", code="E0511") from cause


def store_metrics(row: Array, names: Sequence[str], info: Returned) -> None:
    """Writes values of info at an episode's end; NaN where it has none."""
    for place, name in enumerate(names):
        found = info.get(name) if isinstance(info, Mapping) else None
        if found is None and name == SUCCESS and isinstance(info, Mapping):
            found = info.get("success")
        try:
            row[place] = np.nan if found is None else float(found)
        except (TypeError, ValueError):
            row[place] = np.nan


def refuse_odd_result(name: str, call: str, result: Returned) -> None:
    """Raises unless a call returned the expected number of values."""
    if not isinstance(result, tuple) or len(result) != _LENGTHS[call]:
        found = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise EnvError(f"env {name!r} {call}() returned {found} instead of {_RETURNS[call]}", code="E0511")


def _loses_digits(value: ArrayLike, dtype: np.dtype[np.generic]) -> bool:
    found = np.asarray(value)
    if found.dtype == dtype or found.dtype.kind in "bui":
        return False
    with np.errstate(invalid="ignore"):
        return not np.array_equal(found, found.astype(dtype))
