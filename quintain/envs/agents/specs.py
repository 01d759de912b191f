"""Observation and action specs of a behaviour's agents, with ML-Agents' names.

>>> spec = BehaviorSpec([ObservationSpec((8,))], ActionSpec.create_hybrid(2, (3, 4)))
>>> spec.action_spec.discrete_size, spec.action_spec.empty_action(5).discrete.shape
(2, (5, 2))
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.errors import EnvError

if TYPE_CHECKING:
    from quintain.typing import Array


class DimensionProperty(IntFlag):
    """Properties of one dimension of an observation."""

    UNSPECIFIED = 0
    NONE = 1
    TRANSLATIONAL_EQUIVARIANCE = 2
    VARIABLE_SIZE = 4


class ObservationType(IntEnum):
    """Purpose of an observation."""

    DEFAULT = 0
    GOAL_SIGNAL = 1


class ObservationSpec(NamedTuple):
    """The shape of one observation of one agent."""

    shape: tuple[int, ...]
    dimension_property: tuple[DimensionProperty, ...] = ()
    """One per dimension; empty where nothing is known."""
    observation_type: ObservationType = ObservationType.DEFAULT
    name: str = ""


class ActionTuple:
    """Actions of several agents: continuous [n, continuous_size] and discrete [n, discrete_size]."""

    def __init__(self, continuous: Array | None = None, discrete: Array | None = None) -> None:
        """Makes the tuple; an omitted part has no columns."""
        given = [np.asarray(part) for part in (continuous, discrete) if part is not None]
        num_rows = len(given[0]) if given else 0
        self._continuous = np.zeros((num_rows, 0), np.float32)
        self._discrete = np.zeros((num_rows, 0), np.int32)
        if continuous is not None:
            self.add_continuous(continuous)
        if discrete is not None:
            self.add_discrete(discrete)

    @property
    def continuous(self) -> Array:
        return self._continuous

    @property
    def discrete(self) -> Array:
        return self._discrete

    def add_continuous(self, continuous: Array) -> None:
        self._continuous = np.asarray(continuous, np.float32)
        if not self._discrete.size:
            self._discrete = np.zeros((len(self._continuous), 0), np.int32)

    def add_discrete(self, discrete: Array) -> None:
        self._discrete = np.asarray(discrete, np.int32)
        if not self._continuous.size:
            self._continuous = np.zeros((len(self._discrete), 0), np.float32)


class ActionSpec(NamedTuple):
    """Number of continuous actions, and the number of options in each discrete branch."""

    continuous_size: int
    discrete_branches: tuple[int, ...]

    @property
    def discrete_size(self) -> int:
        return len(self.discrete_branches)

    def is_discrete(self) -> bool:
        return self.discrete_size > 0 and self.continuous_size == 0

    def is_continuous(self) -> bool:
        return self.discrete_size == 0 and self.continuous_size > 0

    @staticmethod
    def create_continuous(continuous_size: int) -> ActionSpec:
        return ActionSpec(continuous_size, ())

    @staticmethod
    def create_discrete(discrete_branches: Sequence[int]) -> ActionSpec:
        return ActionSpec(0, tuple(discrete_branches))

    @staticmethod
    def create_hybrid(continuous_size: int, discrete_branches: Sequence[int]) -> ActionSpec:
        return ActionSpec(continuous_size, tuple(discrete_branches))

    def empty_action(self, n_agents: int) -> ActionTuple:
        """Returns zeros for `n_agents` agents."""
        return ActionTuple(
            np.zeros((n_agents, self.continuous_size), np.float32), np.zeros((n_agents, self.discrete_size), np.int32)
        )

    def random_action(self, n_agents: int, rng: np.random.Generator) -> ActionTuple:
        """Returns uniform random actions: continuous ones in [-1, 1] and discrete ones."""
        numbers = rng.uniform(-1.0, 1.0, (n_agents, self.continuous_size)).astype(np.float32)
        choices = rng.integers(0, self.discrete_branches or 1, (n_agents, self.discrete_size)).astype(np.int32)
        return ActionTuple(numbers, choices)

    def _validate_action(self, actions: ActionTuple, n_agents: int, name: str) -> ActionTuple:
        """Returns the actions if they fit this spec and the number of agents; raises otherwise."""
        for what, found, size in (
            ("numbers", actions.continuous, self.continuous_size),
            ("choices", actions.discrete, self.discrete_size),
        ):
            if found.shape != (n_agents, size):
                raise EnvError(
                    f"behaviour {name!r} was given {what} of shape {found.shape}, expected {(n_agents, size)}: one "
                    f"row for each agent that asked for a decision",
                    code="E0511",
                )
        return actions


class BehaviorSpec(NamedTuple):
    """Observation and action specs of one behaviour."""

    observation_specs: Sequence[ObservationSpec]
    action_spec: ActionSpec
