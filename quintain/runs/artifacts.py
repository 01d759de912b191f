"""Files that a run writes beside its checkpoints, such as exported models, for programs that expect them there.

An environment's settings name the class (`artifacts`, as module:Name): the layout belongs to the system that reads the
files, so the run only says when something is due, committed or finished.
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
    """Writes nothing: the artifacts of a run whose environment names no others."""

    def __init__(self, settings: RunSettings, directory: RunDirectory) -> None:
        self.settings = settings
        self.run = directory.path

    @property
    def needed(self) -> frozenset[str]:
        """Names of checkpoints that must be kept because artifacts belong to them."""
        return frozenset()

    def is_due(self, loop: Loop) -> bool:
        """Says whether a checkpoint is due because artifacts are."""
        return False

    def is_best(self, loop: Loop) -> bool:
        """Says whether the checkpoint about to be committed is the best by the artifacts' own measure."""
        return False

    def reported(self, row: Metrics) -> None:
        """Is told of every row of metrics."""

    def committed(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Is told of every checkpoint once it is committed."""

    def finish(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Is told of the end of training, with the last checkpoint."""


def artifacts_of(run_file: RunFile, directory: RunDirectory) -> Artifacts:
    """Makes the artifacts that the settings of the environment name."""
    # The name stands in the class, not in a file, so there is nothing to ask for.
    module, _, name = str(getattr(type(run_file.experiment.env), "artifacts", "")).partition(":")
    kind: type[Artifacts] = getattr(import_module(module), name) if module else Artifacts
    return kind(run_file.run, directory)
