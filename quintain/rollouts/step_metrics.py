"""Means of what an environment says about its steps, summed where the numbers are and fetched once per rollout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.typing import State

if TYPE_CHECKING:
    from quintain.typing import Metrics

GROUPS = ("rewards", "metrics")
"""Entries of a step's info whose numbers, one per lane, are reported as `rewards/<name>` and `metrics/<name>`."""


class StepMetrics:
    """Adds up the means over lanes, step by step."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}

    def add(self, info: Mapping[str, Any]) -> None:
        for group in GROUPS:
            for key, values in (info.get(group) or {}).items():
                name = f"{group}/{key}"
                mean = np.mean(values) if isinstance(values, np.ndarray | float | int) else values.float().mean()
                self.sums[name] = self.sums.get(name, 0.0) + mean
                self.counts[name] = self.counts.get(name, 0) + 1

    def drain(self) -> Metrics:
        """Returns the means over lanes and steps since the last time, and begins anew."""
        means = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means

    def state_dict(self) -> State:
        return {"sums": {name: float(total) for name, total in self.sums.items()}, "counts": dict(self.counts)}

    def load_state_dict(self, state: State) -> None:
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
