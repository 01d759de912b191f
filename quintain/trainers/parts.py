"""What a trainer is put together from, and what surrounds it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from quintain.algorithms.base import Algorithm
from quintain.envs.hosting import Hosting
from quintain.policies.base import Policy
from quintain.progress import Progress
from quintain.rollouts.source import RolloutSource
from quintain.rollouts.store import RolloutStore
from quintain.services.events import EventManager
from quintain.services.stats import EpisodeWindow, StatsReporter
from quintain.trainers.guard import UpdateGuard
from quintain.world import Alone, World

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.services.writers import RunSummary
    from quintain.trainers.base import Trainer
    from quintain.typing import Array


class Session(Protocol):
    """What surrounds training: output, checkpoints, signals."""

    @property
    def runs_dir(self) -> Path: ...
    @property
    def keeps_checkpoints(self) -> bool: ...
    def running(self, trainer: Trainer) -> AbstractContextManager[None]: ...
    def after_cycle(self, trainer: Trainer) -> None: ...
    def save(self, trainer: Trainer) -> Path: ...
    def take_up(self, trainer: Trainer, path: Path) -> None: ...
    def folder(self, name: str) -> Path: ...
    def keep_evidence(self, trainer: Trainer, tensors: Mapping[str, Array]) -> Path | None: ...
    def rollback(self, trainer: Trainer) -> bool: ...
    def warn(self, trainer: Trainer, code: str, text: str) -> None: ...
    def summary(self, trainer: Trainer) -> RunSummary: ...


@dataclass
class Parts:
    """Everything a trainer is put together from, ready to use."""

    policy: Policy
    algorithm: Algorithm
    source: RolloutSource
    store: RolloutStore
    progress: Progress
    events: EventManager
    stats: StatsReporter
    episodes: EpisodeWindow
    guard: UpdateGuard
    session: Session
    hosting: Hosting
    writer: Any
    """Where the metrics go: the writers of the run, or the one that a user brought."""
    world: World = field(default_factory=Alone)
