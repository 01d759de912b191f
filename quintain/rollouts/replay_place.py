"""Where a replay buffer is stored: in memory while it is small enough, else in a memory-mapped file.

The file has no name, so that nothing is left behind when the process is killed; checkpoints have their own copies. A
buffer that cannot fit is refused before anything is allocated.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintain.data.replay_memory import Allocator
from quintain.errors import ResourceError
from quintain.services.files import atomic
from quintain.settings.run import ReplayPlaceSettings

if TYPE_CHECKING:
    from quintain.typing import Array

_MEMORY_FACTS = Path("/proc/meminfo")
_GROUP_LIMIT, _GROUP_USE = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))


class ReplayPlace:
    """Decides between memory and a file, and refuses a buffer that fits in neither."""

    def __init__(self, settings: ReplayPlaceSettings, folder: Path, *, keeps_checkpoints: bool) -> None:
        self.max_memory_bytes = settings.max_memory_bytes
        self.folder = _existing(folder if settings.directory is None else Path(settings.directory))
        self.checkpoint_folder = _existing(folder) if keeps_checkpoints else None

    def allocator(self, num_bytes: int, row_bytes: int) -> tuple[Allocator, str]:
        """Returns the allocator for a replay buffer of that size, and a note for the user."""
        in_file = num_bytes > self.max_memory_bytes
        if in_file:
            self._require_disk(num_bytes, row_bytes)
            return self._map, f"note: the replay of {atomic.format_size(num_bytes)} is kept in a file in {self.folder}"
        if num_bytes > (available := available_memory()):
            raise ResourceError(
                f"the replay buffer needs {_sizes(num_bytes, row_bytes)}, and {atomic.format_size(available)} of "
                f"memory is available. Set rollout.buffer_size to {max(1, available // row_bytes)} or less, or "
                f"run.replay.max_memory_bytes to less than {num_bytes} to keep it in a file",
                code="E0803",
            )
        if self.checkpoint_folder is not None:
            self._require_room(self.checkpoint_folder, num_bytes, row_bytes, "checkpoints of the replay need")
        return np.zeros, ""

    def _require_disk(self, num_bytes: int, row_bytes: int) -> None:
        checkpoints = self.checkpoint_folder
        if checkpoints is not None and checkpoints.stat().st_dev == self.folder.stat().st_dev:
            self._require_room(self.folder, 2 * num_bytes, 2 * row_bytes, "the replay and its checkpoints need")
            return
        self._require_room(self.folder, num_bytes, row_bytes, "the replay buffer needs")
        if checkpoints is not None:
            self._require_room(checkpoints, num_bytes, row_bytes, "checkpoints of the replay need")

    def _require_room(self, folder: Path, num_bytes: int, row_bytes: int, what: str) -> None:
        free = atomic.free_bytes(folder)
        if num_bytes > free:
            raise ResourceError(
                f"{what} {_sizes(num_bytes, row_bytes)}, and {atomic.format_size(free)} is free in {folder}. Set "
                f"rollout.buffer_size to {max(1, free // row_bytes)} or less, or choose another disk",
                code="E0801",
            )

    def _map(self, shape: tuple[int, int], dtype: str) -> Array:
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        with tempfile.TemporaryFile(dir=self.folder) as file:
            # Else a disk that fills up later would kill the process in the middle of a write.
            os.posix_fallocate(file.fileno(), 0, size)
            mapped: Array = np.memmap(file, dtype=dtype, mode="r+", shape=shape)
        return mapped


def available_memory() -> int:
    """Returns the bytes that this process may still use without swapping, as reported by the system."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if _MEMORY_FACTS.is_file():
        facts = dict(line.split(":", 1) for line in _MEMORY_FACTS.read_text().splitlines())
        available = int(facts["MemAvailable"].split()[0]) * 1024
    if _GROUP_LIMIT.is_file() and _GROUP_USE.is_file():
        limit = _GROUP_LIMIT.read_text().strip()
        if limit.isdecimal():
            available = min(available, max(0, int(limit) - int(_GROUP_USE.read_text())))
    return available


def _existing(folder: Path) -> Path:
    """Returns the folder, or its nearest existing parent: a run's own is made later."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def _sizes(num_bytes: int, row_bytes: int) -> str:
    return f"{atomic.format_size(num_bytes)} ({num_bytes // row_bytes} transitions of {row_bytes} bytes)"
