"""What a run remembers about itself without letting it change a number."""

from __future__ import annotations

from quintain.state import KeepsState


class Records(KeepsState):
    """Keeps the last and the best evaluation."""

    def __init__(self) -> None:
        self.evaluated_at = -1
        self.last_return = 0.0
        self.best_return: float | None = None
        self.best_step = 0
        self.num_eval_episodes = 0
        self.goal_reached = False

    def evaluated(self, step: int, mean_return: float, num_episodes: int) -> None:
        """Takes note of an evaluation."""
        self.evaluated_at, self.last_return, self.num_eval_episodes = step, mean_return, num_episodes
        # Of equals the later one: where returns have a ceiling, the first to touch it was often lucky.
        if self.best_return is None or mean_return >= self.best_return:
            self.best_return, self.best_step = mean_return, step

    def is_new_best(self, step: int) -> bool:
        return self.best_return is not None and self.best_step == step == self.evaluated_at
