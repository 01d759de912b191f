"""Handling of updates that are not finite: skip, roll back, or stop, within a budget.

The optimizer has not taken such a step (it checks the gradient's norm on the device), so the policy is unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from quintain.algorithms.nonfinite import clear_nonfinite, evidence_of, first_bad_tensor
from quintain.core.state import KeepsState, require_count
from quintain.errors import NonFiniteError

if TYPE_CHECKING:
    from quintain.settings.run import RunSettings
    from quintain.trainers.learner import Learner
    from quintain.typing import State

WINDOW = 1000
"""Number of updates over which failures are counted."""
MAX_IN_WINDOW = 10


class UpdateGuard(KeepsState):
    """Counts failed updates and decides how to continue."""

    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_updates", "in_a_row", "obstacle"})

    def __init__(self, settings: RunSettings) -> None:
        self.settings = settings
        self.num_updates = 0
        self.in_a_row = 0
        self.failed_at: list[int] = []
        self.obstacle = 0
        """The latest failed update of the run; after a rollback the count is reset only once that one succeeded."""

    def load_state_dict(self, state: State) -> None:
        for number in state["failed_at"]:
            require_count("failed_at", number)
        super().load_state_dict(state)

    def passed(self, update: int) -> None:
        """Records a successful update, by its number in the run."""
        self.num_updates += 1
        if update >= self.obstacle:
            self.in_a_row = 0

    def failed(self, trainer: Learner, fault: NonFiniteError) -> bool:
        """Decides about a failed update: True continues without it, False means the trainer was rolled back."""
        self.num_updates += 1
        self.in_a_row += 1
        self.obstacle = max(self.obstacle, trainer.progress.updates)
        self.failed_at = [*(n for n in self.failed_at if n > self.num_updates - WINDOW), self.num_updates]
        where = first_bad_tensor(trainer.algorithm, trainer.taken, trainer.progress) or "a part of the loss"
        found = f"{fault.message}; first bad tensor: {where}"
        if self.in_a_row == 1:
            kept = trainer.session.keep_evidence(trainer.loop, evidence_of(trainer.taken))
            found += f"; the batch is in {kept}" if kept else ""
        clear_nonfinite(trainer.taken)
        if self._is_spent:
            raise NonFiniteError(f"{found}. {self._budget(trainer)}", code="E0604") from fault
        if self.settings.on_nonfinite_update == "rollback" and self._go_back(trainer):
            factor = trainer.algorithm.learning_rate_scale
            where = f"went back to step {trainer.global_step}, learning rate times {factor:g}"
            trainer.session.warn(trainer.loop, "W0604", f"{trainer.label}{found}; {where}")
            return False
        trainer.stats.set_stat("train/skipped_updates", len(self.failed_at))
        skipped = f"the update was skipped ({self.in_a_row} in a row)"
        trainer.session.warn(trainer.loop, "W0604", f"{trainer.label}{found}; {skipped}")
        return True

    @property
    def _is_spent(self) -> bool:
        settings = self.settings
        too_many = self.in_a_row >= settings.max_nonfinite_updates or len(self.failed_at) >= MAX_IN_WINDOW
        return settings.on_nonfinite_update == "stop" or too_many

    def _budget(self, trainer: Learner) -> str:
        last = trainer.session.summary(trainer.loop).last_checkpoint
        seen = f"{self.in_a_row} in a row, {len(self.failed_at)} of the last {min(self.num_updates, WINDOW)} updates"
        advice = "Lower the learning rate, or look for extreme rewards or observations"
        return f"Stopped after {seen}; last finite checkpoint: {last or 'none'}. {advice}"

    def _go_back(self, trainer: Learner) -> bool:
        scale, counted = trainer.algorithm.learning_rate_scale, self.state_dict()
        budget = trainer.loop.budget
        if not trainer.session.rollback(trainer.loop):
            return False
        # `train` may have been called with more since that checkpoint.
        trainer.loop.set_budget(budget)
        # Else the same data would lead to the same end, and be counted as the first time.
        trainer.algorithm.learning_rate_scale = scale * self.settings.rollback_learning_rate_factor
        self.load_state_dict(counted)
        return True
