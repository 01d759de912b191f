"""Progress of a trainer. All schedules are functions of these integers, never of the clock."""

from __future__ import annotations

from typing import ClassVar

from quintain.core.budget import Budget
from quintain.core.state import KeepsState, require_count
from quintain.typing import State


class Progress(KeepsState):
    """Counts cycles, stages, environment steps and published versions.

    The counters are updated once per cycle, in its last stage. Until then `env_steps` is the count before the cycle, so
    the first update has fraction 0 and the last one a fraction below 1.
    """

    saved_counts: ClassVar[frozenset[str]] = frozenset(
        {"iteration", "stage", "env_steps", "previous_env_steps", "episodes", "updates", "version"}
    )

    def __init__(self, budget_env_steps: int | None, budget_updates: int | None = None) -> None:
        self.budget_env_steps = budget_env_steps
        self.budget_updates = budget_updates
        self.iteration = 0
        self.stage = 0
        self.is_closing = False
        self.env_steps = 0
        self.previous_env_steps = 0
        self.episodes = 0
        self.updates = 0
        self.version = 0

    def state_dict(self) -> State:
        # A run without a budget of updates saves none, as before there were any.
        return {name: value for name, value in super().state_dict().items() if name != "budget_updates" or value}

    def load_state_dict(self, state: State) -> None:
        state = {"budget_updates": None, **state}
        for name in ("budget_env_steps", "budget_updates"):
            if state[name] is not None and require_count(name, state[name]) < 1:
                raise ValueError(f"{name} is {state[name]}, expected at least 1")
        super().load_state_dict(state)
        self.is_closing = bool(self.is_closing)

    @property
    def budget(self) -> Budget:
        return Budget(self.budget_env_steps, self.budget_updates)

    @budget.setter
    def budget(self, budget: Budget) -> None:
        self.budget_env_steps, self.budget_updates = budget.env_steps, budget.updates

    @property
    def fraction(self) -> float:
        """The completed fraction of the budget before this cycle, 0 to 1; the larger one of two budgets."""
        of_steps = self.env_steps / self.budget_env_steps if self.budget_env_steps else 0.0
        of_updates = self.updates / self.budget_updates if self.budget_updates else 0.0
        return min(1.0, max(of_steps, of_updates))

    @property
    def is_between_cycles(self) -> bool:
        return self.stage == 0 and not self.is_closing

    @property
    def is_budget_spent(self) -> bool:
        return self.fraction >= 1.0

    def close_cycle(self, *, env_steps: int, episodes: int, publishes: bool = True) -> None:
        """Updates all counters by one cycle; a cycle that publishes nothing keeps the version."""
        self.previous_env_steps = self.env_steps
        self.env_steps += env_steps
        self.episodes += episodes
        self.updates += 1
        self.version += publishes

    def begin_cycle_anew(self) -> None:
        """Returns to the start of a cycle whose experience was dropped; skips the end of a closed one."""
        self.stage = 0
        self.is_closing = False

    def next_stage(self, num_stages: int) -> bool:
        """Advances to the next stage and returns whether that closed the cycle."""
        self.stage = (self.stage + 1) % num_stages
        if self.stage == 0:
            self.iteration += 1
        return self.stage == 0

    def crossed(self, every_env_steps: int) -> bool:
        """Whether the cycle that just closed passed a multiple of `every_env_steps`."""
        return self.env_steps // every_env_steps != self.previous_env_steps // every_env_steps
