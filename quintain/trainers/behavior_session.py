"""What surrounds the trainer of one behaviour among several: the run's own row, checkpoints and records."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.services.reporting.stats import StatsReporter
from quintain.trainers.session import Session

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.trainers.joint import JointTrainer
    from quintain.trainers.loop import Loop
    from quintain.typing import Array, State


def prefix_of(behavior: str, num_behaviors: int) -> str:
    """Returns what the names of a behaviour's metrics begin with: nothing where it is the only one."""
    return f"{behavior}/" if num_behaviors > 1 else ""


class SharedStats(StatsReporter):
    """Puts what one behaviour reports into the row of all, under its name."""

    def __init__(self, shared: StatsReporter, prefix: str) -> None:
        self.shared = shared
        self.prefix = prefix
        self._clock = shared._clock

    def add_stat(self, name: str, value: float) -> None:
        self.shared.add_stat(f"{self.prefix}{name}", value)

    def set_stat(self, name: str, value: float) -> None:
        self.shared.set_stat(f"{self.prefix}{name}", value)

    def add_time(self, name: str, seconds: float) -> None:
        self.shared.add_time(name, seconds)

    @property
    def total_seconds(self) -> float:
        return self.shared.total_seconds

    @property
    def last_step(self) -> int:
        return self.shared.last_step

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restores nothing: the shared row is saved once."""


class BehaviorSession:
    """Surrounds the trainer of one behaviour: it passes on to the run what concerns all."""

    def __init__(self, behavior: str, outer: Session) -> None:
        self.behavior = behavior
        self.outer = outer
        self.joint: JointTrainer | None = None

    @property
    def runs_dir(self) -> Path:
        return self.outer.runs_dir

    @property
    def keeps_checkpoints(self) -> bool:
        return self.outer.keeps_checkpoints

    def running(self, loop: Loop) -> AbstractContextManager[None]:
        raise AssertionError("the trainers of a run are trained together")

    def after_stage(self, loop: Loop) -> None:
        """Does nothing: the run commits after stages of all behaviours together."""

    def after_cycle(self, loop: Loop) -> None:
        """Does nothing: rows and checkpoints are written after each turn of all."""

    def save(self, loop: Loop) -> Path:
        return self.outer.save(self._whole)

    def take_up(self, loop: Loop, path: Path) -> None:
        self.outer.take_up(self._whole, path)

    def folder(self, name: str) -> Path:
        return self.outer.folder(name)

    def keep_evidence(self, loop: Loop, tensors: Mapping[str, Array]) -> Path | None:
        return self.outer.keep_evidence(self._whole, tensors)

    def rollback(self, loop: Loop) -> bool:
        return self.outer.rollback(self._whole)

    def warn(self, loop: Loop, code: str, text: str) -> None:
        self.outer.warn(self._whole, code, f"{self.behavior}: {text}")

    def tell(self, text: str) -> None:
        self.outer.tell(f"{self.behavior}: {text}")

    def summary(self, loop: Loop) -> RunSummary:
        return self.outer.summary(self._whole)

    @property
    def _whole(self) -> JointTrainer:
        assert self.joint is not None, "a behaviour's trainer was used before all were joined"
        return self.joint
