"""Names for what travels between the parts; no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    """A numpy array of any shape and dtype."""
    Values: TypeAlias = torch.Tensor | Array
    """Numbers of one vector step, as the environment has them: a tensor or a numpy array."""
    LaneMask: TypeAlias = Values | Sequence[bool]
    """[N] bool, which lanes are meant."""
    LaneIds: TypeAlias = Values | Sequence[int]
    """The ids of the lanes that are meant."""

Tree: TypeAlias = Any
"""Values in the shape of a spec: a leaf, or mappings and tuples of trees by the spec's own entries."""

Observation: TypeAlias = Any
"""A tree of the observation spec with [N, ...] leaves; of one environment of the user's, a member of its space."""

Action: TypeAlias = Any
"""A tree of tensors of the action spec, [N, ...]; for one environment of the user's, a member of its space."""

Info: TypeAlias = dict[str, Any]
"""Diagnostics that an environment returns with a step, by names of its own."""

Mirror: TypeAlias = Callable[[Observation, Action], list[tuple[Observation, Action]]]
"""Maps a batch of observations and actions, in the spec's own shape, to mirrored batches of the same size."""

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
"""What JSON can hold."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object whose writer and reader agree on its keys and on the types below them."""

Keyword: TypeAlias = Any
"""A keyword argument of a function or class that a user names; only that function knows its type."""

Keywords: TypeAlias = dict[str, Keyword]
"""Keyword arguments of such a function."""

Saved: TypeAlias = Any
"""A tree of tensors, arrays and JSON scalars, as a checkpoint stores it; who saved it knows its shape."""

TrainingEnv: TypeAlias = Any
"""Lanes (`Env`), an environment of agents (`AgentEnv`), or the stand-in for one that is in another process."""

State: TypeAlias = dict[str, Saved]
"""What an object saved of itself, by name."""

Metrics: TypeAlias = dict[str, float]
"""What one stage reports, by metric name."""


@runtime_checkable
class Stateful(Protocol):
    """Has state that a checkpoint must hold."""

    def state_dict(self) -> Saved: ...
    def load_state_dict(self, state: Saved) -> Any: ...
