"""Sends rows to Weights & Biases: online with a key, else to files that `wandb sync` uploads later.

Only metrics and an allow-list of hyper-parameters leave the machine. Never the whole settings, the code, the console,
or facts about the machine.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

from quintain.core.extras import require_extra
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.reporting.settings import WandbSettings
from quintain.services.reporting.writers import RunHeader, RunSummary

RUN_ID = "wandb-run-id"
"""The file with the run's wandb id in its directory, so that a resume continues the same wandb run."""
_ID = re.compile(r"[a-z0-9]{8}")
_MAX_ID_BYTES = 100


class WandbRun(Protocol):
    """The interface of a wandb run; wandb has no types where it is not installed."""

    def log(self, data: dict[str, float], step: int) -> None: ...
    def finish(self, exit_code: int) -> None: ...


class WandbWriter:
    """Logs every row to one wandb run, whose id outlives the process."""

    def __init__(self, settings: WandbSettings) -> None:
        require_extra("run.writers: wandb", "wandb")
        self.settings = settings
        self._header: RunHeader | None = None
        self._run: WandbRun | None = None

    def open(self, header: RunHeader) -> None:
        self._header = header

    def write(self, step: int, row: Mapping[str, float]) -> None:
        # Only now: before the first row the run's directory may not be there, and must not be made by a writer.
        if self._run is None:
            self._run = self._begin()
        self._run.log(dict(row), step=step)

    def note(self, text: str) -> None:
        """Does nothing: notes belong to the console."""

    def close(self, summary: RunSummary) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if summary.state != "failed" else 1)
            self._run = None

    def _begin(self) -> WandbRun:
        import wandb

        header = self._header
        directory = None if header is None or header.run_directory is None else Path(header.run_directory)
        mode = self._mode()
        run: WandbRun = wandb.init(
            project=self.settings.project,
            entity=self.settings.entity,
            group=self.settings.group,
            tags=list(self.settings.tags) or None,
            id=None if directory is None else kept_run_id(directory),
            name=None if directory is None else directory.name,
            dir=None if directory is None else str(directory),
            mode=mode,
            resume="allow" if mode == "online" and directory is not None else None,
            config=None if header is None else dict(header.hyper_parameters),
            settings=wandb.Settings(
                silent=self.settings.silent,
                console="off",
                save_code=False,
                disable_code=True,
                disable_git=True,
                disable_job_creation=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_save_requirements=False,
            ),
        )
        return run

    def _mode(self) -> Literal["online", "offline"]:
        if self.settings.mode != "auto":
            return self.settings.mode
        return "online" if os.environ.get("WANDB_API_KEY") else "offline"


def kept_run_id(directory: Path) -> str:
    """Returns the wandb id stored in the run's directory; makes and stores a new one first."""
    path = directory / RUN_ID
    try:
        found = plain_files.read(path, _MAX_ID_BYTES).decode().strip()
    except (OSError, ValueError):
        found = ""
    if _ID.fullmatch(found):
        return found
    chosen = secrets.token_hex(4)
    atomic.replace_file(path, f"{chosen}\n".encode())
    return chosen
