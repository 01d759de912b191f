"""Environment parameters that a curriculum or domain randomization may change: gravity, friction, a pole's length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

import numpy as np

from quintain.errors import EnvError, QuintainError

if TYPE_CHECKING:
    import torch
    from numpy.typing import ArrayLike

    from quintain.typing import LaneIds, State, Values

Parameters: TypeAlias = Mapping[str, Any]
"""Parameter values by name: one for all given lanes, or one per lane."""
LaneParameters = Mapping[int, Mapping[str, float]]
"""The parameter values of each lane."""
Tunable: TypeAlias = Any
"""An environment with `set_parameters`, or whose parameters are attributes."""


def set_attributes(owner: Tunable, name: str, values: Parameters) -> None:
    """Sets parameters of one environment object: by its own `set_parameters(values)`, or as attributes."""
    if callable(getattr(owner, "set_parameters", None)):
        owner.set_parameters(dict(values))
        return
    for key, value in values.items():
        setattr(owner, key, type(_number(owner, name, key))(value))


def require_attributes(owner: Tunable, name: str, keys: Iterable[str], num_lanes: int = 0) -> None:
    """Refuses attributes that are not numeric or, of an object that holds all lanes, not one value per lane."""
    for key in keys:
        if not num_lanes or not _has_rows(getattr(owner, key, None), num_lanes):
            _number(owner, name, key)


def set_lane_values(owner: Tunable, name: str, values: Parameters, lanes: LaneIds | None, num_lanes: int) -> None:
    """Sets attributes of an object that holds all lanes: rows of an array or tensor, or one value for all."""
    for key, value in values.items():
        now = getattr(owner, key, None)
        if _has_rows(now, num_lanes):
            rows = slice(None) if lanes is None else _indices(now, lanes)
            now[rows] = value if isinstance(now, np.ndarray) else _tensor_like(now, value)
        elif lanes is not None and _is_number(now):
            raise EnvError(
                f"env {name!r}: parameter {key!r} is one number for all lanes, so it cannot be set in some of them. "
                f"Give an event is_global: true",
                code="E0521",
            )
        else:
            setattr(owner, key, type(_number(owner, name, key))(value))


def lane_rows(values: Parameters, lanes: Sequence[int]) -> list[dict[str, float]]:
    """Returns one value per lane, from one value for all of them or one per lane."""
    return [
        {key: float(value if np.ndim(value) == 0 else value[row]) for key, value in values.items()}
        for row in range(len(lanes))
    ]


class ParameterSetter:
    """Sets parameters of one environment, and remembers its initial values."""

    def __init__(self, name: str, env: Tunable) -> None:
        self.name = name
        self.owner = getattr(env, "unwrapped", env)
        self.as_made: dict[str, float] = {}

    def set(self, values: Parameters) -> None:
        now = {key: getattr(self.owner, key, None) for key in values if key not in self.as_made}
        self.as_made |= {key: value for key, value in now.items() if _is_number(value)}
        try:
            set_attributes(self.owner, self.name, values)
        except QuintainError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise EnvError(f"env {self.name!r} failed in set_parameters(): {reason}", code="E0521") from error

    def require(self, names: Iterable[str]) -> None:
        """Refuses names that `set` would refuse; an environment's own `set_parameters` cannot be checked."""
        if not callable(getattr(self.owner, "set_parameters", None)):
            require_attributes(self.owner, self.name, names)

    def put_back(self, values: Parameters) -> None:
        """Sets these parameters, and all others to their initial values."""
        if self.as_made or values:
            self.set({**self.as_made, **values})


class ParameterLog:
    """Logs each lane's parameters and when they changed in its episode, so that it can be replayed."""

    def __init__(self, num_lanes: int) -> None:
        self.before: list[dict[str, float]] = [{} for _ in range(num_lanes)]
        self.changes: list[list[tuple[int, dict[str, float]]]] = [[] for _ in range(num_lanes)]

    def add(self, lane: int, step: int, values: dict[str, float]) -> None:
        """Records a change before step `step` of the lane's episode."""
        self.changes[lane].append((step, dict(values)))

    def start_episode(self, lane: int) -> None:
        for _, values in self.changes[lane]:
            self.before[lane].update(values)
        self.changes[lane].clear()

    def at(self, lane: int, step: int) -> dict[str, float]:
        """Returns the changes right before a step of the lane's episode."""
        return {key: value for when, values in self.changes[lane] if when == step for key, value in values.items()}

    def state_dict(self) -> State:
        changes = [[[step, dict(values)] for step, values in lane] for lane in self.changes]
        return {"before": [dict(lane) for lane in self.before], "changes": changes}

    def load_state_dict(self, state: State) -> None:
        self.before = [dict(lane) for lane in state["before"]]
        self.changes = [[(int(step), dict(values)) for step, values in lane] for lane in state["changes"]]


def _number(owner: Tunable, name: str, key: str) -> float:
    now = getattr(owner, key, None)
    if _is_number(now):
        return now
    numbers = [k for k, v in vars(owner).items() if _is_number(v) and k[0] != "_"]
    has = f"it has {', '.join(sorted(numbers))}" if numbers else "it has no attributes that are numbers"
    raise EnvError(f"env {name!r} has no parameter {key!r}; {has}", code="E0521")


def _indices(now: Values, lanes: LaneIds) -> Values:
    if isinstance(now, np.ndarray):
        return np.asarray(lanes)
    import torch

    return torch.as_tensor(lanes, device=now.device)


def _tensor_like(now: torch.Tensor, value: ArrayLike) -> torch.Tensor:
    import torch

    return torch.as_tensor(value, dtype=now.dtype, device=now.device)


def _has_rows(value: object, num_lanes: int) -> TypeGuard[Values]:
    return bool(getattr(value, "shape", ())[:1] == (num_lanes,))


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
