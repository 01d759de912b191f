"""Types of data that are passed between parts; no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    """A numpy array of any shape and dtype."""
    Values: TypeAlias = torch.Tensor | Array
    """Values of one vector step, as the environment returns them: a tensor or a numpy array."""
    LaneMask: TypeAlias = Values | Sequence[bool]
    """[N] bool, the selected lanes."""
    LaneIds: TypeAlias = Values | Sequence[int]
    """The ids of selected lanes."""

Tree: TypeAlias = Any
"""Values in the structure of a spec: a leaf, or mappings and tuples of trees by the spec's own entries."""

Observation: TypeAlias = Any
"""A tree of the observation spec with [N, ...] leaves; of one environment of the user's, a member of its space."""

Action: TypeAlias = Any
"""A tree of tensors of the action spec, [N, ...]; for one environment of the user's, a member of its space."""

Info: TypeAlias = dict[str, Any]
"""Diagnostics that an environment returns with a step, by names of its own."""

Mirror: TypeAlias = Callable[[Observation, Action], list[tuple[Observation, Action]]]
"""Maps a batch of observations and actions, in the spec's structure, to mirrored batches of the same size."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""A JSON value."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose writer and reader agree on its keys and on the types below them."""

Keyword: TypeAlias = Any
"""A keyword argument of a user's function or class; only that function knows its type."""

Keywords: TypeAlias = dict[str, Keyword]
"""Keyword arguments of such a function."""

Saved: TypeAlias = Any
"""A tree of tensors, arrays and JSON scalars, as a checkpoint stores it; its owner knows its structure."""

TrainingEnv: TypeAlias = Any
"""Lanes (`Env`), an environment of agents (`AgentEnv`), or the stand-in for one that is in another process."""

State: TypeAlias = dict[str, Saved]
"""The saved state of an object, by name."""

Metrics: TypeAlias = dict[str, float]
"""Metrics of one stage, by name."""


@runtime_checkable
class Stateful(Protocol):
    """An object with state that a checkpoint must hold."""

    def state_dict(self) -> Saved: ...
    def load_state_dict(self, state: Saved) -> Any: ...
