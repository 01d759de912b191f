"""The console's state of a run. Holds no clock and no stream: both belong to the writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from quintain.services.reporting.writers import RunHeader

RATE_SECONDS = 30.0
"""The remaining time is estimated from the rate of the last 30 seconds ..."""
MIN_RATE_ROWS = 8
"""... or of the last 8 rows, if these took longer."""

UPDATES = "time/iterations"
"""The metric that counts updates."""

HEALTH_METRICS = {
    "kl": "train/approx_kl",
    "clip": "train/clip_fraction",
    "entropy": "train/entropy",
    "expl.var": "train/explained_variance",
}
NORMAL_RANGES = {
    # Beyond this an update moves further than the clipped objective is meant to: lower the learning rate.
    "kl": (-0.005, 0.03),
    # Beyond this most samples of an update are cut off and teach nothing.
    "clip": (0.0, 0.3),
    # Below zero the value estimate is worse than a constant.
    "expl.var": (0.0, 1.0),
}
ENTROPY_LEFT = 0.02
"""Entropy has no range of its own; below this fraction of its first value a policy no longer explores."""


@dataclass(frozen=True)
class Health:
    """A training metric and whether it is in its normal range; None if unknown."""

    label: str
    value: float
    is_normal: bool | None


class RunView:
    """Collects the values for the display from the rows."""

    def __init__(self, header: RunHeader) -> None:
        self.header = header
        self.step = header.start_step
        self.updates = header.start_updates
        self.values: dict[str, float] = {}
        self.best_return: tuple[float, int] | None = None
        self.best_eval: tuple[float, int] | None = None
        self._first_entropy: float | None = None
        self._recent: deque[tuple[float, float]] = deque()
        """Seconds, and the completed fraction of the budget at that time."""

    def add(self, step: int, row: Mapping[str, float], seconds: float) -> None:
        """Adds a row that arrived at the given second of any monotonic clock."""
        self.step = step
        self.updates = int(row.get(UPDATES, self.updates))
        self.values.update(row)
        self.best_return = _better(self.best_return, row.get("rollout/ep_rew_mean"), step)
        self.best_eval = _better(self.best_eval, row.get("eval/mean_reward"), step)
        if self._first_entropy is None:
            self._first_entropy = row.get("train/entropy")
        self._recent.append((seconds, self._spent))
        while len(self._recent) > MIN_RATE_ROWS and seconds - self._recent[0][0] > RATE_SECONDS:
            self._recent.popleft()

    @property
    def fraction(self) -> float:
        return min(1.0, self._spent)

    @property
    def _spent(self) -> float:
        """The completed fraction of the budget; above 1 if the last cycle exceeded it."""
        of_steps = self.step / self.header.budget_env_steps if self.header.budget_env_steps else 0.0
        of_updates = self.updates / self.header.budget_updates if self.header.budget_updates else 0.0
        return max(of_steps, of_updates)

    @property
    def position(self) -> tuple[str, int, int | None]:
        """The unit of the budget, the completed amount, and the total."""
        if self.header.budget_env_steps is None and self.header.budget_updates is not None:
            return "updates", self.updates, self.header.budget_updates
        return "steps", self.step, self.header.budget_env_steps

    @property
    def seconds_left(self) -> float | None:
        """Estimates the remaining time from the recent rate, pauses included; None while unknown."""
        if len(self._recent) < 2:
            return None
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        if last <= first or end <= start:
            return None
        return max(0.0, 1.0 - last) * (end - start) / (last - first)

    def health(self) -> list[Health]:
        """Returns the known training metrics of the rows, with their ranges."""
        return [
            Health(label, value, self._is_normal(label, value))
            for label, metric in HEALTH_METRICS.items()
            if (value := self.values.get(metric)) is not None
        ]

    def _is_normal(self, label: str, value: float) -> bool | None:
        if label != "entropy":
            low, high = NORMAL_RANGES[label]
            return low <= value <= high
        # The entropy of a density may be negative, and then a part of it means nothing.
        if self._first_entropy is None or self._first_entropy <= 0:
            return None
        return value >= ENTROPY_LEFT * self._first_entropy


def _better(best: tuple[float, int] | None, value: float | None, step: int) -> tuple[float, int] | None:
    if value is None or (best is not None and value <= best[0]):
        return best
    return value, step
