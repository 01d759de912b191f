"""Keeps what tests sign away from the key of the user who runs them, and what they write in memory."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
_ENOUGH_BYTES = 4 * 2**30

# Before anything is imported that reads them. Tests and their programs are small: several threads in each of several
# processes only wait for one another.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def _folder_in_memory() -> Path | None:
    """Returns where thousands of small checkpoints need not wait for a disk; None where there is no such place."""
    folder = _MEMORY / f"tests-of-user-{os.getuid()}"
    try:
        if shutil.disk_usage(_MEMORY).free < _ENOUGH_BYTES:
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError:
        return None
    return folder if folder.lstat().st_uid == os.getuid() and not folder.is_symlink() else None


if "TMPDIR" not in os.environ and (_found := _folder_in_memory()) is not None:
    os.environ["TMPDIR"] = str(_found)

# A shell's background jobs ignore Ctrl-C and `nohup` ignores SIGHUP, and programs inherit that; tests send both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_state = tempfile.TemporaryDirectory(prefix="quintain-state-")
# The interpreter would remove it too, with a warning, and warnings are errors.
atexit.register(_state.cleanup)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Ends the programs that a failed test left running, so that the next one does not fail by them."""
    from tests import warm  # it copies the environment that is set above and in `pytest_configure`

    before = warm.running()
    try:
        return (yield)
    except BaseException:
        warm.end(warm.running() - before)
        raise


def pytest_configure(config: pytest.Config) -> None:
    # In the environment, because many tests run commands in processes of their own.
    os.environ["XDG_STATE_HOME"] = _state.name
