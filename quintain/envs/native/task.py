"""Description of a native task, and its parameters as users name them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.compiled.runtime.kernel import Kernel
    from quintain.typing import Array

Parameter: TypeAlias = float | bool | tuple[str, ...]
"""A parameter's default: a number, a bool, or the first of some strings."""

if TYPE_CHECKING:
    Lanes: TypeAlias = tuple[Array, Array, Array, Array, int]
    """State, age, seed of the next episode and parameters of each lane [N, ...], and the time limit of episodes."""
    LaneAction: TypeAlias = Any
    """The action of one lane as its kernel takes it: an int, or a row of floats."""
    Number: TypeAlias = Any
    """A scalar in the precision of its operands, which stubs cannot express: numba has rules of its own."""
    Record: TypeAlias = Any
    """The parameters of one lane by name, as a kernel reads them: one scalar per attribute."""
    Outcome: TypeAlias = tuple[Array, Array, Array, Array, Array]
    """Outputs of a step: obs, final_obs, reward, terminated and truncated [N, ...]."""


@dataclass(frozen=True)
class TaskKernels:
    """The compiled functions of a task."""

    step: Kernel[[Lanes, Array, Outcome], int]
    """Steps every lane and resets those that ended; returns how many did, or -1 - lane for an invalid action."""
    start: Kernel[[Lanes, Array, Array], None]
    """Starts an episode in the chosen lanes, and writes their observations to the last argument."""


@dataclass(frozen=True)
class Task:
    """A task: its spaces, its parameters by Gymnasium's names, and its kernels."""

    obs: BoxSpec
    action: BoxSpec | DiscreteSpec
    state_size: int
    parameters: Mapping[str, Parameter]
    kernels: TaskKernels
    frames_per_second: float
    first_obs: Callable[[Array], Array] | None = None
    """Computes first observations of episodes from their states, where kernels leave that to numpy."""

    @property
    def spec(self) -> BehaviorSpec:
        return BehaviorSpec(self.obs, self.action)

    @property
    def record(self) -> np.dtype[np.void]:
        """The parameters of one lane by name, as kernels read them."""
        return np.dtype([(name, np.float64) for name in self.parameters])

    def column(self, name: str) -> int:
        """Returns the column of a parameter; raises with the known names."""
        known = list(self.parameters)
        if name in known:
            return known.index(name)
        near = get_close_matches(name, known, n=1)
        hint = f'did you mean "{near[0]}"?' if near else f"it has {', '.join(known)}"
        raise SettingsError(f'unknown parameter "{name}" of a native environment; {hint}', code="E0203")

    def number(self, name: str, value: float | str) -> float:
        """Converts a parameter's value to the scalar that kernels read."""
        default = self.parameters[name]
        if isinstance(default, tuple) and value in default:
            return float(default.index(value))
        if isinstance(default, bool) and value in (True, False):
            return float(value)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
        if isinstance(default, float) and is_number:
            return float(value)
        expected = "a finite number" if isinstance(default, float) else "true or false"
        expected = f"one of {', '.join(default)}" if isinstance(default, tuple) else expected
        raise SettingsError(f"parameter {name} of a native environment: found {value!r}, expected {expected}")

    def defaults(self) -> Array:
        """Returns the default values of all parameters."""
        return np.array([0.0 if isinstance(value, tuple) else float(value) for value in self.parameters.values()])


def bounded(high: Sequence[float], low: Sequence[float] | None = None) -> BoxSpec:
    """Describes a bounded continuous space, as Gymnasium's Box of float32."""
    lowest = [-value for value in high] if low is None else low
    bounds = [tuple(np.asarray(values, dtype=np.float32).tolist()) for values in (lowest, high)]
    return BoxSpec((len(high),), "float32", *bounds)
