"""The outcome of an evaluation: returns and lengths of whole episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    def cut_note(self) -> str:
        """Returns a note on truncated episodes, if any."""
        if not self.num_cut:
            return ""
        episodes = f"{self.num_cut} of {len(self.returns)} episodes"
        return f"{episodes} did not end and were cut after {self.max_episode_steps:,} steps"
