"""The outcome of an evaluation: returns and lengths of whole episodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quintain.services.reporting.digits import estimated, measured, plural, spread

if TYPE_CHECKING:
    from quintain.typing import Array


@dataclass(frozen=True)
class EpisodeResults:
    """Returns and lengths of completed episodes, in lane order."""

    returns: Array
    lengths: Array
    said: dict[str, Array] = field(default_factory=dict)
    """Values that the environment reported at the end of all episodes, such as `success`."""
    num_cut: int = 0
    """Number of truncated episodes; they count with their return so far."""
    max_episode_steps: int | None = None
    """The time limit at which they were truncated."""

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())

    @property
    def success_rate(self) -> float | None:
        """The part of the episodes whose last `info["is_success"]` was true; None if the environment has none."""
        return float(self.said["success"].mean()) if "success" in self.said else None

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Returns a confidence interval of the mean return, by Student's t; infinite with one episode."""
        num, mean = len(self.returns), self.mean_return
        if num < 2:
            return -math.inf, math.inf
        half = t_quantile(0.5 + 0.5 * confidence, num - 1) * float(self.returns.std(ddof=1)) / math.sqrt(num)
        return mean - half, mean + half

    def __str__(self) -> str:
        """Returns the line that `quintain eval` prints."""
        mean, low, high = estimated(self.mean_return, *self.interval())
        is_sure, success = len(self.returns) > 1, self.success_rate
        return (
            f"return {mean}{f' (95% interval of the mean: {low} to {high})' if is_sure else ''} · "
            f"std {spread(self.std_return)} · length {measured(self.mean_length)} · "
            f"{'' if success is None else f'success {success:.0%} · '}"
            f"{plural(len(self.returns), 'episode')}{f', {self.num_cut} of them cut' if self.num_cut else ''}"
        )

    @property
    def cut_note(self) -> str:
        """Returns a note on truncated episodes, if any."""
        if not self.num_cut:
            return ""
        episodes = f"{self.num_cut} of {len(self.returns)} episodes"
        return f"{episodes} did not end and were cut after {self.max_episode_steps:,} steps"


def t_quantile(probability: float, freedom: int) -> float:
    """Returns the quantile above the median of Student's t distribution with so many degrees of freedom.

    >>> round(t_quantile(0.975, 9), 3), round(t_quantile(0.975, 1), 2)
    (2.262, 12.71)
    """
    low, high = 0.0, 1.0
    while _t_within(high, freedom) < 2.0 * probability - 1.0:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _t_within(middle, freedom) < 2.0 * probability - 1.0 else (low, middle)
    return high


def _t_within(t: float, freedom: int) -> float:
    """Returns the probability of [-t, t]: a finite sum (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    squared = math.cos(angle) ** 2
    is_odd = freedom % 2 == 1
    term, total = (math.cos(angle), 0.0) if is_odd else (1.0, 0.0)
    for k in range(1 + is_odd, freedom, 2):
        total += term
        term *= squared * k / (k + 1)
    total *= math.sin(angle)
    return (angle + total) * 2.0 / math.pi if is_odd else total
