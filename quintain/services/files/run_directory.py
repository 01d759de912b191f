"""The directory of one run: its lock, its layout, and the small files that describe its status."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from safetensors import numpy as safetensors_numpy

from quintain.errors import RunDirectoryError
from quintain.services import plain_files, signatures
from quintain.services.checkpoints import catalog as checkpoint_catalog
from quintain.services.checkpoints import disk_reserve
from quintain.services.checkpoints import files as checkpoint_files
from quintain.services.files import atomic, stale_run_dirs
from quintain.services.files.run_names import OLD_MARK, STATUS, check_run_id
from quintain.services.reporting.redaction import redact

if TYPE_CHECKING:
    from quintain.typing import Array, Json

RunState = Literal["running", "finished", "stopped", "failed"]

LOCK = "LOCK"
CONFIG = "config.yaml"
ENVIRONMENT = "env.json"
METRICS = "metrics.jsonl"
EVENTS = "events.jsonl"
CRASHES = "crash"
WORKER_LOGS = "workers"

_BORN_WITH = frozenset({checkpoint_catalog.FOLDER, CONFIG})
_MAX_STATUS_BYTES = 1_000_000
_MAX_CONFIG_BYTES = 2_000_000
_SIGNED_AS = "config"
_MAX_OWNER_BYTES = 1000
# The kernel takes a moment to tear down a killed owner and its lock; a script's next command may come sooner.
_LOCK_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class Status:
    """The status of a run, or how it ended, as in status.json."""

    state: RunState
    step: int
    checkpoint: str | None = None
    pid: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    resumable: bool = True


class RunDirectory:
    """Paths of the files of one run; writes the small ones atomically."""

    def __init__(self, path: Path, shown: Path | None = None) -> None:
        # An environment may change the directory of this process at any time.
        self.path = path.absolute()
        self.shown = shown or path
        """The path as the user wrote it, for messages."""
        path = self.path
        self.checkpoints = path / checkpoint_catalog.FOLDER
        self.metrics = path / METRICS
        self.events = path / EVENTS
        self.config = path / CONFIG
        self.worker_logs = path / WORKER_LOGS

    @property
    def run_id(self) -> str:
        """Returns the run's id, which is the directory's name."""
        return self.path.name

    @classmethod
    def plan(cls, runs_dir: Path, run_id: str, *, force: bool = False) -> RunDirectory:
        """Refuses an invalid or used name before anything is written."""
        run = cls(runs_dir / check_run_id(run_id))
        if run.path.exists() and not force:
            raise run._exists_error()
        return run

    @classmethod
    def create(
        cls,
        runs_dir: Path,
        run_id: str,
        *,
        force: bool = False,
        config: str | None = None,
        shown: Path | None = None,
    ) -> RunDirectory:
        """Makes the directory of a new run; `force` first moves a run of that name to `<run>.old-<utc>`.

        With `config` the directory appears with its settings in it: a kill leaves a run to resume, or nothing.
        """
        run = cls(runs_dir / check_run_id(run_id), shown)
        try:
            atomic.make_directory(runs_dir)
            disk_reserve.probe(runs_dir, 1)
            stale_run_dirs.sweep(runs_dir, may_hold=_BORN_WITH)
            if force and run.path.exists():
                run._move_away()
            run._appear(config)
        except FileExistsError as error:
            if not run.path.is_dir():
                raise atomic.write_error(error, doing="create the run", directory=run.path) from error
            raise run._exists_error() from error
        except OSError as error:
            raise atomic.write_error(error, doing="create the run", directory=run.path) from error
        return run

    @classmethod
    def open_existing(cls, path: Path) -> RunDirectory:
        """Opens a run that was created before; changes nothing."""
        run = cls(path)
        run.require_plain()
        if not run.checkpoints.is_dir():
            raise RunDirectoryError(f"{path} is not a run's directory: it has no checkpoints/", code="E0303")
        return run

    def require_plain(self) -> None:
        """Refuses a run with links, pipes and other special files: they may lead anywhere."""
        try:
            odd = plain_files.odd_entry(self.path)
        except OSError:
            # The next that needs the directory says what is wrong with it.
            return
        if odd is not None:
            raise atomic.NotPlain(self.shown / odd, "file or folder of its own").as_error()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the run for this process; raises if another process holds the lock, and then changes nothing."""
        fd = self._acquire()
        try:
            self._sign(fd)
            yield
        finally:
            os.close(fd)

    def write_status(self, status: Status) -> None:
        """Replaces status.json, without secrets."""
        reason = None if status.reason is None else redact(status.reason)
        self._replace(STATUS, _render(asdict(replace(status, reason=reason))))

    def read_status(self) -> Status | None:
        """Returns the last status, or None if there is none that can be read."""
        try:
            status = Status(**json.loads(plain_files.read(self.path / STATUS, _MAX_STATUS_BYTES)))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return status if status.state in get_args(RunState) and type(status.step) is int else None

    @property
    def has_checkpoint(self) -> bool:
        """Whether the run's status lists a checkpoint, even one that is gone."""
        status = self.read_status()
        return status is not None and status.checkpoint is not None

    def describe_unclosed(self, resume_step: int) -> str | None:
        """Returns a note if the previous process died without recording it; call it under the lock."""
        status = self.read_status()
        if status is None or status.state != "running":
            return None
        ended = f"previous process ended without closing the run (pid {status.pid})"
        return f"note: {ended}; resuming from step {resume_step}"

    def write_config(self, text: str) -> None:
        """Replaces config.yaml; its signature is inside, so that no kill can separate the two."""
        self._replace(CONFIG, signatures.signed_text(_SIGNED_AS, text).encode())

    def doubt(self) -> str | None:
        """Returns why the run is not known to be this user's own; None if settings and checkpoints are all signed."""
        try:
            text = plain_files.read(self.config, _MAX_CONFIG_BYTES).decode()
        except (OSError, ValueError) as error:
            return f"{CONFIG} of this run cannot be read ({error})"
        if (doubt := signatures.doubt_about_text(_SIGNED_AS, text)) is not None:
            return f"{CONFIG} of this run {doubt}"
        for path in checkpoint_catalog.CheckpointCatalog(self.checkpoints).paths():
            # What cannot be read is never loaded either.
            with suppress(checkpoint_files.Flaw):
                if (doubt := checkpoint_files.read_manifest(path).doubt()) is not None:
                    return f"checkpoint {path.name} of this run {doubt}"
        return None

    def write_environment(self, facts: Mapping[str, Json]) -> None:
        """Replaces env.json: the versions and the machine this run last ran on."""
        self._replace(ENVIRONMENT, _render(facts))

    def write_crash(self, text: str) -> Path:
        """Writes a traceback to a crash report, redacted; every traceback on disk goes through here."""
        path = self.path / CRASHES / f"{_utc_for_name()}-{os.getpid()}.txt"
        try:
            plain_files.make_folder(path.parent)
            atomic.create_file(path, text.encode(errors="backslashreplace"))
        except OSError as error:
            raise atomic.write_error(error, doing="write the crash report", directory=self.path) from error
        return Path(self.show(path))

    def write_evidence(self, tensors: Mapping[str, Array]) -> Path:
        """Saves arrays beside the crash reports, for debugging; values need not be finite."""
        path = self.path / CRASHES / f"{_utc_for_name()}-{os.getpid()}.safetensors"
        data = safetensors_numpy.save({name: np.ascontiguousarray(array) for name, array in tensors.items()})
        try:
            plain_files.make_folder(path.parent)
            atomic.create_file(path, data)
        except OSError as error:
            raise atomic.write_error(error, doing="write evidence", directory=self.path, needed=len(data)) from error
        return Path(self.show(path))

    def show(self, path: Path) -> str:
        """Returns a path of the run as the user would write it."""
        return str(self.shown / path.relative_to(self.path))

    def folder(self, name: str) -> Path:
        """Returns a folder of the run, made if it is not there."""
        path = self.path / name
        try:
            plain_files.make_folder(path)
        except OSError as error:
            raise atomic.write_error(error, doing=f"make {name}/", directory=self.path) from error
        return path

    def _replace(self, name: str, data: bytes) -> None:
        try:
            atomic.replace_file(self.path / name, data)
        except OSError as error:
            doing = f"write {name}"
            raise atomic.write_error(error, doing=doing, directory=self.path, needed=len(data)) from error

    def _acquire(self) -> int:
        deadline = time.monotonic() + _LOCK_WAIT_SECONDS
        while True:
            try:
                fd = plain_files.open_file(self.path / LOCK, os.O_RDWR | os.O_CREAT)
            except FileNotFoundError as error:
                raise RunDirectoryError(f"no run directory at {self.shown}", code="E0304") from error
            except OSError as error:
                raise atomic.write_error(error, doing="lock the run", directory=self.path) from error
            if _try_lock(fd, self.path):
                return fd
            owner = os.pread(fd, _MAX_OWNER_BYTES, 0)
            os.close(fd)
            if time.monotonic() > deadline:
                raise self._in_use_error(owner)
            time.sleep(0.05)

    def _sign(self, fd: int) -> None:
        owner: dict[str, Json] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "start": datetime.now(UTC).isoformat(),
        }
        try:
            os.ftruncate(fd, 0)
            os.pwrite(fd, _render(owner), 0)
            # Checkpoints are swept by their manager, which reports what it finds; no folder is entered through a link.
            with os.scandir(self.path) as entries:
                inside = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
            for folder in (self.path, *inside):
                if folder != self.checkpoints:
                    for path in folder.glob(f"{atomic.TEMPORARY_PREFIX}*"):
                        atomic.remove_tree(path)
            disk_reserve.probe(self.path, 1)
        except OSError as error:
            raise atomic.write_error(error, doing="lock the run", directory=self.path) from error

    def _appear(self, config: str | None) -> None:
        if os.path.lexists(self.path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        suffix = f"{self.run_id}-{os.getpid()}-{secrets.token_hex(4)}"
        temporary = RunDirectory(self.path.with_name(f"{atomic.TEMPORARY_PREFIX}{suffix}"))
        try:
            os.mkdir(temporary.path, atomic.DIRECTORY_MODE)
            os.mkdir(temporary.checkpoints, atomic.DIRECTORY_MODE)
            if config is not None:
                atomic.create_file(temporary.config, signatures.signed_text(_SIGNED_AS, config).encode())
            os.rename(temporary.path, self.path)
        except OSError as error:
            with suppress(OSError):
                atomic.remove_tree(temporary.path)
            if error.errno == errno.ENOTEMPTY:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
            raise
        atomic.sync_directory(self.path.parent)

    def _move_away(self) -> None:
        with self.lock():
            os.rename(self.path, self.path.with_name(f"{self.path.name}{OLD_MARK}{_utc_for_name()}"))

    def _in_use_error(self, written: bytes) -> RunDirectoryError:
        advice = "Wait, stop it, or choose another --run-id"
        try:
            owner = json.loads(written)
            by = f"pid {int(owner['pid'])} on host {owner['host']} since {str(owner['start'])[11:16]} UTC"
            if (owner["pid"], owner["host"]) == (os.getpid(), socket.gethostname()):
                by, advice = "another trainer of this process", "Call close() on it first"
        except (ValueError, KeyError, TypeError, RecursionError):
            by = "another process"
        return RunDirectoryError(f'run "{self.run_id}" is in use by {by}. {advice}', code="E0301")

    def _exists_error(self) -> RunDirectoryError:
        status = self.read_status()
        found = f"step {status.step}, {status.state}" if status is not None else "no status"
        advice = "Use quintain resume to continue, --run-id for a new one, or --force to move it away"
        return RunDirectoryError(f'run "{self.run_id}" exists ({found}). {advice}', code="E0302")


def _try_lock(fd: int, directory: Path) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The directory may have been moved away between opening the file and getting its lock.
        return os.path.samestat(os.fstat(fd), os.stat(directory / LOCK))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        os.close(fd)
        raise atomic.write_error(error, doing="lock the run", directory=directory) from error


def _render(content: Mapping[str, Json]) -> bytes:
    return json.dumps(content, indent=1).encode() + b"\n"


def _utc_for_name() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
