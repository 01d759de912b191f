"""Files that a run writes in addition to its checkpoints, such as exported models, for other programs.

An environment's settings name the class (`artifacts`, as module:Name): the layout belongs to the system that reads the
files. The run only calls it when artifacts are due, committed or finished.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quintain.services.checkpoints.catalog import Checkpoint
    from quintain.services.files.run_directory import RunDirectory
    from quintain.settings.run import RunSettings
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop
    from quintain.typing import Metrics


class Artifacts:
    """The default artifacts: writes nothing."""

    def __init__(self, settings: RunSettings, directory: RunDirectory) -> None:
        self.settings = settings
        self.run = directory.path

    @property
    def needed(self) -> frozenset[str]:
        """Names of checkpoints that must be kept because artifacts belong to them."""
        return frozenset()

    def is_due(self, loop: Loop) -> bool:
        """Whether artifacts require a checkpoint now."""
        return False

    def is_best(self, loop: Loop) -> bool:
        """Whether the checkpoint about to be committed is the best by the artifacts' own measure."""
        return False

    def reported(self, row: Metrics) -> None:
        """Called with every row of metrics."""

    def committed(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Called after every committed checkpoint."""

    def finish(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Called at the end of training, with the last checkpoint."""


def artifacts_of(run_file: RunFile, directory: RunDirectory) -> Artifacts:
    """Makes the artifacts class that the environment's settings name."""
    # The name stands in the class, not in a file, so there is nothing to ask for.
    module, _, name = str(getattr(type(run_file.experiment.env), "artifacts", "")).partition(":")
    kind: type[Artifacts] = getattr(import_module(module), name) if module else Artifacts
    return kind(run_file.run, directory)
