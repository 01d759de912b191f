"""Means of an environment's metrics: of every step, fetched once per rollout, and of the last ended episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.envs.base import EPISODE, SUCCESS
from quintain.typing import State

if TYPE_CHECKING:
    from quintain.typing import Metrics

GROUPS = ("rewards", "metrics")
"""Entries of a step's info whose values, one per lane, are reported as `rewards/<name>` and `metrics/<name>`."""


WINDOW_SIZE = 100
"""Number of episodes whose ends are averaged."""


class StepMetrics:
    """Sums the means over lanes, step by step, and keeps the values of the last episodes."""

    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}
        self.counts: dict[str, int] = {}
        self.windows: dict[str, list[float]] = {}
        """Numbers that were given at the ends of episodes, oldest first."""

    def add(self, info: Mapping[str, Any]) -> None:
        for key, values in (info.get(EPISODE) or {}).items():
            window = self.windows.setdefault(episode_metric(key), [])
            window += values[values == values][-WINDOW_SIZE:].tolist()
            del window[:-WINDOW_SIZE]
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
        """Returns the means over lanes and steps since the last call, and those over the last episodes."""
        means = {name: float(total) / self.counts[name] for name, total in self.sums.items()}
        self.sums, self.counts = {}, {}
        return means | {name: sum(window) / len(window) for name, window in self.windows.items() if window}

    def state_dict(self) -> State:
        sums = {name: float(total) for name, total in self.sums.items()}
        windows = {name: list(window) for name, window in self.windows.items()}
        # Only where there are any, because most environments say nothing.
        return {"sums": sums, "counts": dict(self.counts), **({"windows": windows} if windows else {})}

    def load_state_dict(self, state: State) -> None:
        self.sums, self.counts = dict(state["sums"]), dict(state["counts"])
        saved = state.get("windows", {}).items()
        self.windows = {name: [float(value) for value in window] for name, window in saved}


def episode_metric(name: str) -> str:
    """Returns the name in the metrics of a number from info at the end of an episode."""
    return "rollout/success_rate" if name == SUCCESS else f"info/{name}"


def _mean(values: Any) -> Any:
    """Returns the mean over lanes on its device, or None for a value without one number per lane."""
    if isinstance(values, torch.Tensor):
        return values.float().mean() if values.ndim <= 1 and values.numel() else None
    array = np.asarray(values) if isinstance(values, np.ndarray | np.generic | float | int) else np.empty(0)
    return array.mean() if array.dtype.kind in "biuf" and array.ndim <= 1 and array.size else None
