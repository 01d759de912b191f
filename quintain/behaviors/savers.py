"""Model savers: pluggable, by default the run's own checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quintain.behaviors.trainer import Trainer


class BaseModelSaver(ABC):
    """Saves models; derive from it to save them elsewhere as well."""

    @abstractmethod
    def register(self, module: Any) -> None:
        """Registers a policy or an optimizer whose modules are saved."""

    @abstractmethod
    def save_checkpoint(self, behavior_name: str, step: int) -> tuple[str, list[str]]:
        """Saves all modules; returns the path, and the paths of other written files."""

    @abstractmethod
    def initialize_or_load(self, policy: Any = None) -> None:
        """Restores saved modules, where a run starts from them."""


class RunModelSaver(BaseModelSaver):
    """Saves everything in a checkpoint of the run, from which it resumes exactly."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.modules: list[Any] = []

    def register(self, module: Any) -> None:
        self.modules.append(module)

    def save_checkpoint(self, behavior_name: str, step: int) -> tuple[str, list[str]]:
        return str(self.trainer.save_checkpoint()), []

    def initialize_or_load(self, policy: Any = None) -> None:
        """Does nothing: a run restores everything before its trainers continue."""
