"""Durable file operations: once they have returned, they survive a kill or a power cut.

All atomic writes go through this module; it does not interpret the contents.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from pathlib import Path

from quintain.errors import QuintainError, ResourceError, RunDirectoryError

TEMPORARY_PREFIX = ".tmp-"
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_WRITABLE = frozenset(
    {errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP}
)
_OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class NotPlain(OSError):
    """A file or folder of a run is a link, or of another kind than expected."""

    def __init__(self, path: Path | str, expected: str) -> None:
        super().__init__(errno.ELOOP, f"not a {expected}", str(path))

    def as_error(self) -> RunDirectoryError:
        """Returns the error for a run that cannot be used because of it."""
        return RunDirectoryError(
            f"{self.filename}: {self.strerror}; a run is never read or written through links. Remove it, or copy the "
            f"run with: cp -rL",
            code="E0306",
        )


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Writes all bytes, in several system calls if needed."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def create_file(name: str | Path, data: bytes | memoryview, *, dir_fd: int | None = None) -> None:
    """Creates a file that must not exist yet, and makes its bytes durable."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, FILE_MODE, dir_fd=dir_fd)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes) -> None:
    """Replaces a file atomically: a reader sees the old contents or the new ones."""
    temporary = path.with_name(f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        create_file(temporary, data)
        os.rename(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes the entries of a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(path: Path) -> None:
    """Makes a directory that only its owner can enter, and its missing parents."""
    if path.is_dir():
        return
    make_directory(path.parent)
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise


def remove_tree(path: Path) -> None:
    """Removes a directory with its contents, or the file or link of that name."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path)


def is_disk_full(error: OSError) -> bool:
    """Whether freeing disk space or quota would have prevented this error."""
    return error.errno in _DISK_FULL


def free_bytes(directory: Path) -> int:
    """Returns the bytes this user may still write in the file system of a directory, which need not exist yet."""
    while not directory.exists() and directory != directory.parent:
        directory = directory.parent
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def format_size(num_bytes: int) -> str:
    """Returns a size for people, in decimal units.

    >>> format_size(41_300_000)
    '41.3 MB'
    """
    size = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def write_error(error: OSError, *, doing: str, directory: Path, needed: int = 0) -> QuintainError:
    """Returns the error for a failed write: the exhausted resource, the place, and the remedy."""
    if isinstance(error, NotPlain):
        return error.as_error()
    said = os.strerror(error.errno) if error.errno else str(error)
    if is_disk_full(error):
        message = (
            f"cannot {doing}: {said} in {directory} (needs {format_size(needed)}, "
            f"{format_size(free_bytes(directory))} free). Free space, then continue with: quintain resume"
        )
        return ResourceError(message, code="E0801")
    if error.errno in _NOT_WRITABLE:
        message = f"run directory is not writable: {directory} ({said}). Choose another with --runs-dir"
        return RunDirectoryError(message, code="E0305")
    if error.errno in _OUT_OF_DESCRIPTORS:
        return ResourceError(f"cannot {doing}: {said}. Raise the limit with: ulimit -n", code="E0805")
    message = f"cannot {doing}: {said} in {directory}. Check the disk, then continue with: quintain resume"
    return ResourceError(message, code="E0806")
