"""Where a trainer's models are kept: pluggable, and by default the run's own checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.behaviors.trainer import Trainer


class BaseModelSaver(ABC):
    """Keeps models; derive from it to keep them somewhere else as well."""

    @abstractmethod
    def register(self, module: Any) -> None:
        """Takes note of a policy or an optimizer whose modules are to be kept."""

    @abstractmethod
    def save_checkpoint(self, behavior_name: str, step: int) -> tuple[str, list[str]]:
        """Keeps everything now; returns where, and the paths of what else was written."""

    @abstractmethod
    def initialize_or_load(self, policy: Any = None) -> None:
        """Puts back what was kept, where a run begins with it."""


class RunModelSaver(BaseModelSaver):
    """Keeps everything in a checkpoint of the run, from which it is resumed exactly."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.modules: list[Any] = []

    def register(self, module: Any) -> None:
        self.modules.append(module)

    def save_checkpoint(self, behavior_name: str, step: int) -> tuple[str, list[str]]:
        return str(self.trainer.save_checkpoint()), []

    def initialize_or_load(self, policy: Any = None) -> None:
        """Does nothing: a run puts everything back before its trainers go on."""
