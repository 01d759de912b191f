"""Converts and validates values that an environment of agents returns: arrays of known shape and dtype.

Accepts lists in place of arrays, missing observations where no agent is present, and one mask over all branches. Any
other deviation from the spec is refused with an error that names the behaviour. Later code handles no user objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, Spec, TupleSpec, box, discrete_sizes, leaves, multi_discrete
from quintain.envs.truths import NO_NUMBERS, is_truth
from quintain.errors import EnvError, NonFiniteError, SpecMismatch

if TYPE_CHECKING:
    from quintain.typing import Array

Described: TypeAlias = Any
"""An object like ML-Agents' BehaviorSpec, of any library; checked in `core_spec`."""
Steps: TypeAlias = Any
"""An object like ML-Agents' DecisionSteps or TerminalSteps; checked in `Boundary`."""
Given: TypeAlias = Any
"""An attribute of steps before it is checked: an array, lists, or any other object."""
CLAMP_LIMIT = 1e6
"""Replaces infinity where values are clamped; NaN becomes 0."""
Dtype: TypeAlias = type[np.float32 | np.int64 | np.bool_]


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports of some agents of one behaviour at a step; one row per agent."""

    ids: Array
    """[n] int64"""
    obs: dict[str, Array]
    """Leaves by field name, [n, ...] float32."""
    reward: Array
    """[n] float32, since the agent's last report."""
    group_id: Array
    """[n] int64; 0 is no group."""
    group_reward: Array
    """[n] float32"""
    mask: Array | None = None
    """[n, options] bool, True where an option of a discrete action is allowed; only with decisions."""
    interrupted: Array | None = None
    """[n] bool, the episode was truncated; only with ends."""
    spoiled: Array | None = None
    """[n] bool, a value was not finite and the episode is dropped; None where all were finite."""
    num_clamped: int = 0
    """Number of agents with a value that was not finite and was clamped."""

    def __len__(self) -> int:
        return len(self.ids)


def core_spec(behavior: str, described: Described) -> BehaviorSpec:
    """Converts an object like ML-Agents' BehaviorSpec to the spec of a policy."""
    try:
        shapes = [tuple(int(n) for n in each.shape) for each in described.observation_specs]
        actions = described.action_spec
        num_continuous, branches = int(actions.continuous_size), tuple(int(n) for n in actions.discrete_branches)
    except (AttributeError, TypeError, ValueError) as error:
        raise SpecMismatch(
            f"behaviour {behavior!r}: expected a spec with observation_specs and action_spec, found a "
            f"{type(described).__name__} ({error})"
        ) from error
    if not shapes or any(min(shape, default=0) < 1 for shape in shapes):
        raise SpecMismatch(
            f"behaviour {behavior!r} observes {shapes or 'nothing'}: every agent needs an observation, and no "
            f"dimension may be empty"
        )
    if min((num_continuous, *branches)) < 0 or not num_continuous + len(branches) or any(n < 1 for n in branches):
        raise SpecMismatch(
            f"behaviour {behavior!r} has {num_continuous} continuous actions and discrete branches {list(branches)}; "
            f"expected at least one action, and at least one option in each branch"
        )
    parts: list[Spec] = [box(num_continuous, low=-1.0, high=1.0)] if num_continuous else []
    parts += [multi_discrete(*branches)] if branches else []
    observed = tuple(box(*shape) for shape in shapes)
    return BehaviorSpec(
        obs=observed[0] if len(observed) == 1 else TupleSpec(observed),
        action=parts[0] if len(parts) == 1 else TupleSpec(tuple(parts)),
        mask_size=sum(branches),
    )


class Boundary:
    """Reads the steps of one behaviour.

    NaN and infinity are refused with `on_nonfinite` error, become finite with clamp, and mark their agent as spoiled
    with drop_episode.
    """

    def __init__(self, behavior: str, spec: BehaviorSpec, on_nonfinite: str = "error") -> None:
        self.behavior = behavior
        self.on_nonfinite = on_nonfinite
        self.bad: list[Array] = []
        """For each part of the current steps: which agents returned a value that is not finite."""
        self.leaves = leaves(spec.obs, f.OBS)
        self.branches = discrete_sizes(spec.action)
        self.last_ids: Array = np.zeros(0, np.int64)
        self.nobody = Reports(
            ids=np.zeros(0, np.int64),
            obs={name: np.zeros((0, *leaf.shape), np.float32) for name, leaf in self.leaves.items()},
            reward=np.zeros(0, np.float32),
            group_id=np.zeros(0, np.int64),
            group_reward=np.zeros(0, np.float32),
            mask=np.ones((0, spec.mask_size), np.bool_) if spec.mask_size else None,
            interrupted=np.zeros(0, np.bool_),
        )

    def decisions(self, steps: Steps) -> Reports:
        """Returns the agents that request a decision."""
        reports = self._reports(steps, "decision")
        if not self.branches or reports is self.nobody:
            return reports
        return replace(reports, mask=self._mask(getattr(steps, "action_mask", None), len(reports)))

    def ends(self, steps: Steps) -> Reports:
        """Returns the agents whose episode ended."""
        reports = self._reports(steps, "terminal")
        if reports is self.nobody:
            return reports
        return replace(reports, interrupted=self._column(steps, "interrupted", len(reports), np.bool_))

    def _reports(self, steps: Steps, which: str) -> Reports:
        try:
            ids = np.asarray(steps.agent_id, dtype=np.int64).reshape(-1)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._refusal(f"{which} steps without whole numbers in agent_id ({error})") from error
        num_agents = len(ids)
        if num_agents == 0:
            return self.nobody
        self._refuse_doubles(ids, which)
        self.bad.clear()
        reports = Reports(
            ids=ids,
            obs=self._obs(getattr(steps, "obs", None), num_agents, which),
            reward=self._column(steps, "reward", num_agents, np.float32),
            group_id=self._column(steps, "group_id", num_agents, np.int64, is_optional=True),
            group_reward=self._column(steps, "group_reward", num_agents, np.float32, is_optional=True),
        )
        if not self.bad:
            return reports
        is_bad: Array = np.logical_or.reduce(self.bad)
        if self.on_nonfinite == "clamp":
            return replace(reports, num_clamped=int(np.count_nonzero(is_bad)))
        return replace(reports, spoiled=is_bad)

    def _refuse_doubles(self, ids: Array, which: str) -> None:
        # Most often the same agents ask again, who were looked at before.
        if np.array_equal(ids, self.last_ids):
            return
        if len(np.unique(ids)) != len(ids):
            values, counts = np.unique(ids, return_counts=True)
            raise self._refusal(f"{which} steps that name an agent twice: {values[counts > 1][0]}")
        self.last_ids = ids.copy()

    def _obs(self, given: Given, num_agents: int, which: str) -> dict[str, Array]:
        shapes = [(num_agents, *leaf.shape) for leaf in self.leaves.values()]
        # One array in place of a list of one array.
        if isinstance(given, np.ndarray) and [given.shape] == shapes:
            given = [given]
        if given is None or len(given) != len(self.leaves):
            found = "none" if given is None else str(len(given))
            raise self._refusal(f"{found} observations with {which} steps, declared {len(self.leaves)}")
        obs = {}
        for (name, leaf), rows in zip(self.leaves.items(), given, strict=True):
            array = self._numbers(rows, np.float32, name)
            if array.shape != (num_agents, *leaf.shape):
                raise self._refusal(f"{name} of shape {array.shape}, expected {(num_agents, *leaf.shape)}")
            obs[name] = self._finite(array, name)
        return obs

    def _column(self, steps: Steps, name: str, num_agents: int, dtype: Dtype, *, is_optional: bool = False) -> Array:
        given = getattr(steps, name, None)
        if given is None and is_optional:
            return np.zeros(num_agents, dtype)
        if given is None:
            raise self._refusal(f"steps without {name}")
        if dtype is np.bool_ and not is_truth(np.asarray(given)):
            raise self._refusal(f"{name} as {np.asarray(given).dtype}, expected True or False for each agent")
        column = self._numbers(given, dtype, name).reshape(-1)
        if len(column) != num_agents:
            raise self._refusal(f"{len(column)} of {name} for {num_agents} agents")
        return self._finite(column, name) if dtype is np.float32 else column

    def _mask(self, given: Given, num_agents: int) -> Array:
        """Returns the allowed options, from the environment's mask of forbidden ones."""
        width = sum(self.branches)
        if given is None:
            return np.ones((num_agents, width), np.bool_)
        parts: Sequence[Given] = given if isinstance(given, list | tuple) else [given]
        arrays = [self._numbers(part, np.bool_, "action_mask").reshape(num_agents, -1) for part in parts]
        widths = tuple(part.shape[1] for part in arrays)
        if widths not in (self.branches, (width,)):
            raise EnvError(
                f"behaviour {self.behavior!r} returned an action mask of {list(widths)} options, expected "
                f"{list(self.branches)}: an array for each branch, or one over all",
                code="E0515",
            )
        allowed: Array = ~np.concatenate(arrays, axis=1)
        some = np.logical_or.reduceat(allowed, np.cumsum((0, *self.branches[:-1])), axis=1)
        if not some.all():
            row, branch = (int(i) for i in np.argwhere(~some)[0])
            raise EnvError(
                f"behaviour {self.behavior!r} returned an action mask that forbids every option of branch {branch} in "
                f"row {row}; at least one must be allowed",
                code="E0515",
            )
        return allowed

    def _numbers(self, given: Given, dtype: Dtype, name: str) -> Array:
        try:
            found = np.asarray(given)
            if found.dtype.kind in NO_NUMBERS:
                raise TypeError(f"its dtype is {found.dtype}")
            return found.astype(dtype, copy=False)
        except (TypeError, ValueError) as error:
            raise self._refusal(f"{name} that is no array of numbers ({error})") from error

    def _finite(self, array: Array, name: str) -> Array:
        """Returns an array with finite values only, and records the rows that had others."""
        is_finite = np.isfinite(array)
        if is_finite.all():
            return array
        bad = np.asarray(~is_finite.reshape(len(array), -1).all(axis=1))
        if self.on_nonfinite == "error":
            row = int(np.flatnonzero(bad)[0])
            raise NonFiniteError(
                f"behaviour {self.behavior!r} returned {name} that is not finite in row {row}. Fix the environment, "
                f"or set env.on_nonfinite to drop_episode or clamp",
                code="E0601",
                evidence={name: array[row : row + 1].copy()},
            )
        self.bad.append(bad)
        limit = CLAMP_LIMIT if self.on_nonfinite == "clamp" else 0.0
        return np.nan_to_num(array, nan=0.0, posinf=limit, neginf=-limit)

    def _refusal(self, what: str) -> EnvError:
        return EnvError(f"behaviour {self.behavior!r} returned {what}", code="E0511")


def joined(parts: Sequence[Reports]) -> Reports:
    """Concatenates the rows of several reports."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Reports(
        ids=np.concatenate([part.ids for part in parts]),
        obs={name: np.concatenate([part.obs[name] for part in parts]) for name in first.obs},
        reward=np.concatenate([part.reward for part in parts]),
        group_id=np.concatenate([part.group_id for part in parts]),
        group_reward=np.concatenate([part.group_reward for part in parts]),
        mask=None if first.mask is None else np.concatenate([part.mask for part in parts if part.mask is not None]),
        interrupted=(
            None
            if first.interrupted is None
            else np.concatenate([part.interrupted for part in parts if part.interrupted is not None])
        ),
        spoiled=(
            None
            if all(part.spoiled is None for part in parts)
            else np.concatenate([np.zeros(len(p), np.bool_) if p.spoiled is None else p.spoiled for p in parts])
        ),
        num_clamped=sum(part.num_clamped for part in parts),
    )
