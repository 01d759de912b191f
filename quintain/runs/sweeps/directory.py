"""The directory of a sweep: its plan, its runs, their logs and failures, and the summary. Imports no torch.

sweeps/NAME/
  sweep.json        axes, metric, and each run with its combination and seed
  planned/ID.yaml   the settings of each run, complete
  runs/ID/          the runs, as `quintain train` makes them
  logs/ID.log       what each run printed
  failures.json     why runs failed, in one line each
  summary.md, .csv, .json; runs.csv
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from quintain.errors import RunDirectoryError
from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import check_run_id
from quintain.settings.base import Settings
from quintain.settings.yaml_text import shortened
from quintain.typing import Keywords

PLAN = "sweep.json"
FAILURES = "failures.json"
_MAX_BYTES = 64_000_000


class SavedRun(Settings):
    """One run of a sweep, as in sweep.json."""

    id: str
    """Id of the run."""

    combination: Keywords
    """Values by the names of the axes."""

    seed: int
    """Seed of the run."""


class SavedPlan(Settings):
    """The contents of sweep.json."""

    axes: tuple[str, ...]
    """Names of everything that combinations differ in."""

    metric: str
    """Metric of the summary."""

    mode: Literal["max", "min"]
    """Whether the largest or the smallest mean is best."""

    runs: tuple[SavedRun, ...] = Field(min_length=1)
    """All runs, combination by combination."""


class SweepDirectory:
    """Paths of the files of one sweep; writes the small ones atomically, and trusts none that it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs"
        self.planned = path / "planned"
        self.logs = path / "logs"

    @property
    def name(self) -> str:
        return self.path.name

    @classmethod
    def find(cls, sweeps_dir: Path, text: str) -> SweepDirectory:
        """Returns the directory of a sweep that exists, by its name or path."""
        names = sorted(each.parent.name for each in sweeps_dir.glob(f"*/{PLAN}")) if sweeps_dir.is_dir() else []
        for path in (sweeps_dir / text, Path(text)):
            if (path / PLAN).is_file():
                return cls(path)
        found = f"Sweeps there: {', '.join(names[:8])}" if names else "There are no sweeps in it"
        raise RunDirectoryError(f"no sweep {shortened(text)!r} in {sweeps_dir}. {found}", code="E0304")

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Makes the directory if need be, and locks it for this process."""
        try:
            atomic.make_directory(self.path)
            for folder in (self.runs, self.planned, self.logs):
                plain_files.make_folder(folder)
        except OSError as error:
            raise atomic.write_error(error, doing="make the sweep", directory=self.path) from error
        with RunDirectory(self.path).lock():
            yield

    def write(self, name: str, text: str) -> Path:
        """Replaces a file of the sweep."""
        path = self.path / name
        try:
            atomic.replace_file(path, text.encode())
        except OSError as error:
            raise atomic.write_error(error, doing=f"write {name}", directory=self.path) from error
        return path

    def read_plan(self) -> SavedPlan:
        """Returns the plan; refuses a file that is none, and ids that lead elsewhere."""
        path = self.path / PLAN
        try:
            plan = SavedPlan.model_validate(json.loads(plain_files.read(path, _MAX_BYTES)), strict=False)
        except (OSError, ValueError, RecursionError, ValidationError) as error:
            about = error.strerror if isinstance(error, OSError) else "expected the plan of a sweep"
            raise RunDirectoryError(f"{path}: {about}. Write it anew with: quintain sweep GRID", code="E0307") from None
        for run in plan.runs:
            check_run_id(run.id)
        return plan

    def read_failures(self) -> dict[str, str]:
        """Returns the lines of runs that failed, by id; none if the file cannot be read."""
        try:
            found = json.loads(plain_files.read(self.path / FAILURES, _MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return {}
        return {str(name): str(line) for name, line in found.items()} if isinstance(found, dict) else {}

    def write_failures(self, failures: Mapping[str, str]) -> None:
        self.write(FAILURES, json.dumps(failures, indent=1) + "\n")
