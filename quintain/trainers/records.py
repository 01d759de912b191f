"""Records of a run that do not influence training."""

from __future__ import annotations

from quintain.core.state import KeepsState
from quintain.typing import State


class Records(KeepsState):
    """Keeps the last and the best evaluation."""

    def __init__(self) -> None:
        self.evaluated_at = -1
        self.last_return = 0.0
        self.best_return: float | None = None
        self.best_score: float | None = None
        self.best_step = 0
        self.num_eval_episodes = 0
        self.goal_reached = False
        self.best_of_training: float | None = None

    def load_state_dict(self, state: State) -> None:
        for name in ("best_return", "best_score", "best_of_training"):
            if not isinstance(state[name], float | int | None):
                raise ValueError(f"records.{name} is {state[name]!r}, expected a number or none")
        super().load_state_dict(state)

    def evaluated(
        self, step: int, mean_return: float, num_episodes: int, *, score: float | None = None, mode: str = "max"
    ) -> None:
        """Records an evaluation; the best has the highest or lowest score, or mean return."""
        self.evaluated_at, self.last_return, self.num_eval_episodes = step, mean_return, num_episodes
        found = mean_return if score is None else score
        # Of equals the later one: where returns have a ceiling, the first to touch it was often lucky.
        if self.best_score is None or (found <= self.best_score if mode == "min" else found >= self.best_score):
            self.best_score, self.best_return, self.best_step = found, mean_return, step

    def is_new_best(self, step: int) -> bool:
        return self.best_return is not None and self.best_step == step == self.evaluated_at

    def is_best_of_training(self, mean_return: float) -> bool:
        """Whether the mean return of training episodes is the highest so far; records it if so."""
        if self.best_of_training is not None and mean_return < self.best_of_training:
            return False
        self.best_of_training = mean_return
        return True
