"""Means of an environment's step metrics, summed on their device and fetched once per rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.typing import State

if TYPE_CHECKING:
    from quintain.typing import Metrics

GROUPS = ("rewards", "metrics")
"""Entries of a step's info whose values, one per lane, are reported as `rewards/<name>` and `metrics/<name>`."""


class StepMetrics:
    """Sums the means over lanes, step by step."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        for group in GROUPS:
            said = info.get(group)
            if not isinstance(said, Mapping):
                continue
            for key, values in said.items():
                mean = _mean(values)
                # Gymnasium's vector environments say with `_<name>` which lanes have given a number.
                if mean is None or str(key).startswith("_"):
                    continue
                name = f"{group}/{key}"
                self.sums[name] = self.sums.get(name, 0.0) + mean
                self.counts[name] = self.counts.get(name, 0) + 1

    def drain(self) -> Metrics:
        """Returns the means over lanes and steps since the last call."""
        means = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def state_dict(self) -> State:
        return {"sums": {name: float(total) for name, total in self.sums.items()}, "counts": dict(self.counts)}

    def load_state_dict(self, state: State) -> None:
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])


def _mean(values: Any) -> Any:
    """Returns the mean over lanes on its device, or None for a value without one number per lane."""
    if isinstance(values, torch.Tensor):
        return values.float().mean() if values.ndim <= 1 and values.numel() else None
    array = np.asarray(values) if isinstance(values, np.ndarray | np.generic | float | int) else np.empty(0)
    return array.mean() if array.dtype.kind in "biuf" and array.ndim <= 1 and array.size else None
