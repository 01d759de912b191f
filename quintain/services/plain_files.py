"""Opens files of a run directory without trusting it: no link is followed, no pipe waited for, sizes are limited."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from quintain.services.files import atomic
from quintain.services.files.atomic import NotPlain

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_file(path: Path | str, flags: int, *, dir_fd: int | None = None) -> int:
    """Opens a regular file; one to be written must have no second hard link, which could be anywhere."""
    try:
        fd = os.open(path, flags | _FLAGS, atomic.FILE_MODE, dir_fd=dir_fd)
    except OSError as error:
        # What opening a link and a pipe or a socket gives.
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise NotPlain(path, "regular file") from error
        raise
    found = os.fstat(fd)
    is_written = flags & (os.O_WRONLY | os.O_RDWR)
    if not stat.S_ISREG(found.st_mode) or (is_written and found.st_nlink > 1):
        os.close(fd)
        raise NotPlain(path, "regular file" if not stat.S_ISREG(found.st_mode) else "file with one name")
    return fd


def read(path: Path, max_bytes: int) -> bytes:
    """Returns the contents of a regular file; refuses a larger one before reading it."""
    fd = open_file(path, os.O_RDONLY)
    with open(fd, "rb") as file:
        size = os.fstat(fd).st_size
        if size > max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes, expected at most {max_bytes}", str(path))
        return file.read(max_bytes)


def is_folder(path: Path) -> bool:
    """Whether the path is a folder and not a link."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def make_folder(path: Path) -> None:
    """Makes a folder of a run if it does not exist; refuses a link in its place."""
    if is_folder(path):
        return
    try:
        os.mkdir(path, atomic.DIRECTORY_MODE)
    except FileExistsError as error:
        if not is_folder(path):
            raise NotPlain(path, "folder") from error


def odd_entry(directory: Path) -> str | None:
    """Returns the first entry that is neither a regular file nor a folder, or None."""
    with os.scandir(directory) as entries:
        odd = [
            entry.name
            for entry in entries
            if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False))
        ]
    return min(odd, default=None)
