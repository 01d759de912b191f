"""How far a trainer has come. Everything that depends on time is a function of these integers, never of the clock."""

from __future__ import annotations

from quintain.state import KeepsState


class Progress(KeepsState):
    """Counts cycles, stages, environment steps and published versions.

    The counters move once per cycle, in its last stage. Until then `env_steps` is what the cycle started from, so the
    first update sees fraction 0 and the last one does not see 1.
    """

    def __init__(self, budget_env_steps: int) -> None:
        self.budget_env_steps = budget_env_steps
        self.iteration = 0
        self.stage = 0
        self.is_closing = False
        self.env_steps = 0
        self.previous_env_steps = 0
        self.episodes = 0
        self.updates = 0
        self.version = 0

    @property
    def fraction(self) -> float:
        """The part of the budget that was spent before this cycle, 0 to 1."""
        return min(1.0, self.env_steps / self.budget_env_steps)

    @property
    def is_between_cycles(self) -> bool:
        return self.stage == 0 and not self.is_closing

    @property
    def is_budget_spent(self) -> bool:
        return self.env_steps >= self.budget_env_steps

    def close_cycle(self, *, env_steps: int, episodes: int) -> None:
        """Moves all counters at once by what the cycle consumed."""
        self.previous_env_steps = self.env_steps
        self.env_steps += env_steps
        self.episodes += episodes
        self.updates += 1
        self.version += 1

    def begin_cycle_anew(self) -> None:
        """Goes back to the start of a cycle whose experience was dropped; the end of a closed one is left out."""
        self.stage = 0
        self.is_closing = False

    def next_stage(self, num_stages: int) -> bool:
        """Steps to the next stage and says whether that closed the cycle."""
        self.stage = (self.stage + 1) % num_stages
        if self.stage == 0:
            self.iteration += 1
        return self.stage == 0

    def crossed(self, every_env_steps: int) -> bool:
        """Says whether the cycle that just closed passed a multiple of `every_env_steps`."""
        return self.env_steps // every_env_steps != self.previous_env_steps // every_env_steps
