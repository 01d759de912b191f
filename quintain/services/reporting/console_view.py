"""The console's state of a run. Holds no clock and no stream: both belong to the writer."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    "explore": "train/exploration",
    "q": "train/q_value",
}
NORMAL_RANGES = {
    # Beyond this an update moves further than the clipped objective is meant to: lower the learning rate.
    "kl": (-0.005, 0.03),
    # Beyond this most samples of an update are cut off and teach nothing.
    "clip": (0.0, 0.3),
    # Below zero the value estimate is worse than a constant.
    "expl.var": (0.0, 1.0),
}
"""Entropy has no range: that of a density has any sign, and a discrete policy that has learned is sure of itself."""

MAX_POINTS = 2048
"""Number of values that a curve remembers; then each two become their mean."""


@dataclass(frozen=True)
class Health:
    """A training metric and its usual range, if it has one."""

    label: str
    value: float
    usual: tuple[float, float] | None = None

    @property
    def digits(self) -> int:
        """How many digits after the point are shown."""
        return 3 if self.label == "kl" else 2

    @property
    def shown(self) -> float:
        """The value as it is shown, which is also what is judged; never -0."""
        return round(self.value, self.digits) + 0.0

    @property
    def is_normal(self) -> bool | None:
        """Whether the value is in its usual range; None without a range."""
        return None if self.usual is None else self.usual[0] <= self.shown <= self.usual[1]


class Curve:
    """The course of a metric from the start of the run, in bounded memory, and its best value."""

    def __init__(self, *, prefers_later: bool = False) -> None:
        """Makes one; of equal best values it takes the first, or the later one as checkpoints do."""
        self.best: tuple[float, int] | None = None
        """The highest value, and its step."""
        self._prefers_later = prefers_later
        self._means: list[float] = []
        self._waiting: list[float] = []
        self._per_point = 1

    def add(self, step: int, value: float) -> None:
        if self.best is None or value > self.best[0] or (self._prefers_later and value == self.best[0]):
            self.best = (value, step)
        self._waiting.append(value)
        if len(self._waiting) < self._per_point:
            return
        self._means.append(sum(self._waiting) / self._per_point)
        self._waiting = []
        if len(self._means) == MAX_POINTS:
            self._means = resampled(self._means, MAX_POINTS // 2)
            self._per_point *= 2

    def points(self, most: int) -> list[float]:
        """Returns the values, oldest first; means of neighbours if there are more than `most`."""
        newest = [sum(self._waiting) / len(self._waiting)] if self._waiting else []
        points = self._means + newest
        return points if len(points) <= most else resampled(points, most)


def resampled(values: Sequence[float], number: int) -> list[float]:
    """Returns the means of so many neighbouring stretches of equal length.

    >>> resampled([1.0, 3.0, 5.0, 7.0, 9.0], 2)
    [2.0, 7.0]
    """
    ends = [place * len(values) // number for place in range(number + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(ends)]


class BehaviorView:
    """The returns of one behaviour, in training and in evaluations."""

    def __init__(self, name: str) -> None:
        self.name = name
        """Empty for the only one."""
        self.prefix = f"{name}/" if name else ""
        self.returns = Curve()
        self.evals = Curve(prefers_later=True)

    def add(self, step: int, row: Mapping[str, float]) -> None:
        for metric, curve in (("rollout/ep_rew_mean", self.returns), ("eval/mean_reward", self.evals)):
            value = row.get(f"{self.prefix}{metric}")
            if value is not None and math.isfinite(value):
                curve.add(step, value)


class RunView:
    """Collects the values for the display from the rows."""

    def __init__(self, header: RunHeader) -> None:
        self.header = header
        self.step = header.start_step
        self.updates = header.start_updates
        self.values: dict[str, float] = {}
        self.behaviors = [BehaviorView(name) for name in header.behaviors or ("",)]
        self._recent: deque[tuple[float, float]] = deque()
        """Seconds, and the completed fraction of the budget at that time."""
        for row in header.history:
            self._remember(int(row["step"]), row)

    def add(self, step: int, row: Mapping[str, float], seconds: float) -> None:
        """Adds a row that arrived at the given second of any monotonic clock."""
        self.step = step
        self.updates = int(row.get(UPDATES, self.updates))
        self.values.update(row)
        self._remember(step, row)
        self._recent.append((seconds, self._spent))
        while len(self._recent) > MIN_RATE_ROWS and seconds - self._recent[0][0] > RATE_SECONDS:
            self._recent.popleft()

    def _remember(self, step: int, row: Mapping[str, float]) -> None:
        # One block of settings may stand for behaviours that only the environment names; each has its whole budget.
        names = {key.partition("/rollout/")[0] for key in row if "/rollout/" in key}
        if not self.header.behaviors and (new := names - {each.name for each in self.behaviors}):
            known = [each for each in self.behaviors if each.name]
            self.behaviors = sorted([*known, *map(BehaviorView, new)], key=lambda each: each.name)
        for behavior in self.behaviors:
            behavior.add(step, row)

    @property
    def fraction(self) -> float:
        return min(1.0, self._spent)

    @property
    def _spent(self) -> float:
        """The completed fraction of the budget; above 1 if the last cycle exceeded it."""
        of_steps = self.step / self.budget_env_steps if self.budget_env_steps else 0.0
        of_updates = self.updates / self.budget_updates if self.budget_updates else 0.0
        return max(of_steps, of_updates)

    @property
    def budget_env_steps(self) -> int | None:
        """Environment steps of all behaviours together; the header has the sum over those of the settings."""
        return self._of_all(self.header.budget_env_steps)

    @property
    def budget_updates(self) -> int | None:
        """Updates of all behaviours together."""
        return self._of_all(self.header.budget_updates)

    def _of_all(self, budget: int | None) -> int | None:
        return None if budget is None else budget * (1 if self.header.behaviors else len(self.behaviors))

    @property
    def position(self) -> tuple[str, int, int | None]:
        """The unit of the budget, the completed amount, and the total."""
        if self.budget_env_steps is None and self.budget_updates is not None:
            return "updates", self.updates, self.budget_updates
        return "steps", self.step, self.budget_env_steps

    @property
    def seconds_left(self) -> float | None:
        """Estimates the remaining time from the recent rate, pauses included; None while unknown."""
        if len(self._recent) < 2:
            return None
        (start, first), (end, last) = self._recent[0], self._recent[-1]
        if last <= first or end <= start:
            return None
        return max(0.0, 1.0 - last) * (end - start) / (last - first)

    def health(self, behavior: BehaviorView | None = None) -> list[Health]:
        """Returns the known training metrics of a behaviour, or of the first, with their ranges."""
        prefix = (behavior or self.behaviors[0]).prefix
        # Where all episodes return the same, there is no variance that could be explained.
        is_constant = self.values.get(f"{prefix}rollout/ep_rew_std") == 0.0
        return [
            Health(label, value, NORMAL_RANGES.get(label))
            for label, metric in HEALTH_METRICS.items()
            if (value := self.values.get(f"{prefix}{metric}")) is not None and (label != "expl.var" or not is_constant)
        ]
