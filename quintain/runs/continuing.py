"""Continues stored runs from Python, where nothing is written before training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintain.errors import RunDirectoryError
from quintain.runs.ranks.state import joint_exactness
from quintain.runs.restore import Change, change_of_lanes
from quintain.services.checkpoints.catalog import Checkpoint, CheckpointCatalog
from quintain.services.files.run_directory import RunDirectory

if TYPE_CHECKING:
    from quintain.runs.run import Run
    from quintain.trainers.loop import Loop


def continue_later(
    run: Run, loop: Loop, directory: RunDirectory, checkpoint: Checkpoint, changes: Sequence[Change]
) -> None:
    """Lets a loop with the state of a checkpoint continue its run; nothing is written before it trains or saves."""
    newest = CheckpointCatalog(directory.checkpoints).latest(lambda text: None).commit

    def take_over() -> RunDirectory:
        run.resources.enter_context(directory.lock())
        if CheckpointCatalog(directory.checkpoints).latest(lambda text: None).commit != newest:
            raise RunDirectoryError(f"run {directory.shown} went on after it was loaded; load it again", code="E0301")
        run.open_directory(directory)
        run.go_on_from(loop, checkpoint, change_of_lanes(changes))
        if changes:
            run.log("settings_changed", loop, detail=[list(change) for change in changes])
        run.write_settings()
        run.show_determinism(joint_exactness(loop))
        return directory

    run.is_kept, run.take_over = True, take_over
