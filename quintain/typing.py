"""Names for what travels between the parts; no behaviour."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import torch

    Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
    """A numpy array of any shape and dtype."""
    Values: TypeAlias = torch.Tensor | Array
    """Numbers of one vector step, as the environment has them: a tensor or a numpy array."""

State: TypeAlias = dict[str, Any]
"""A tree of tensors, arrays and JSON scalars, as a checkpoint stores it."""

Metrics: TypeAlias = dict[str, float]
"""What one stage reports, by metric name."""


@runtime_checkable
class Stateful(Protocol):
    """Has state that a checkpoint must hold."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> Any: ...
