"""Commits and retires checkpoints so that a kill at any time leaves the newest committed one intact.

A checkpoint becomes visible by one rename to a name that was never used before. Writing requires the run's lock.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.services.checkpoints import disk_reserve, state_files
from quintain.services.checkpoints import files as checkpoint_files
from quintain.services.checkpoints.catalog import (
    BAD_PREFIX,
    CatalogEntry,
    Checkpoint,
    CheckpointCatalog,
    Loaded,
    damage_warning,
    digest,
    load,
    resolve,
    verify,
)
from quintain.services.checkpoints.files import FileRecord, Flaw, Manifest
from quintain.services.checkpoints.state_files import digest_of
from quintain.services.files import atomic

if TYPE_CHECKING:
    from quintain.typing import Array, Json

__all__ = [
    "CatalogEntry",
    "Checkpoint",
    "CheckpointCatalog",
    "CheckpointManager",
    "Loaded",
    "Manifest",
    "digest",
    "digest_of",
    "load",
    "resolve",
    "verify",
]

TRASH_PREFIX = ".trash-"
FEWEST_KEPT = 2

_EVER_NAMED = re.compile(
    rf"(?:{re.escape(BAD_PREFIX)}|{re.escape(TRASH_PREFIX)})?{checkpoint_files.CHECKPOINT_NAME.pattern}.*"
)


class CheckpointManager(CheckpointCatalog):
    """Manages the checkpoints of one run in one directory: the `keep` newest and the best."""

    def __init__(self, directory: Path, keep: int, keep_every_updates: int | None = None) -> None:
        """Opens the directory; checkpoints at multiples of `keep_every_updates` updates are never retired."""
        super().__init__(directory)
        if keep < FEWEST_KEPT:
            raise SettingsError(f"run.checkpoint.keep: found {keep}, expected at least {FEWEST_KEPT}", code="E0211")
        self._keep = keep
        self._keep_every_updates = keep_every_updates
        self.needed: frozenset[str] = frozenset()
        """Names of checkpoints that are kept regardless of age."""
        self._reserve = disk_reserve.DiskReserve(directory)

    def commit(
        self,
        state: Mapping[str, object],
        *,
        step: int,
        about: Mapping[str, Json],
        is_best: bool = False,
        allow_nonfinite: Collection[str] = (),
    ) -> Checkpoint:
        """Writes a checkpoint atomically, then retires old ones.

        On a full disk the reserve is released and the write tried once more. NaN and infinity are refused except at or
        below the paths in `allow_nonfinite`.
        """
        encoded = state_files.encode(state, allow_nonfinite=allow_nonfinite)
        files = {
            checkpoint_files.TENSORS: encoded.tensor_bytes(),
            checkpoint_files.DOCUMENT: encoded.document_bytes(),
        }
        bulk = {f"{sha256}.bulk": array for sha256, array in encoded.bulk.items()}
        records = {name: FileRecord.of(data) for name, data in files.items()}
        records |= {f"{sha256}.bulk": FileRecord(array.size, sha256) for sha256, array in encoded.bulk.items()}
        state_digest = encoded.digest()
        older = {name: path for name in bulk if (path := self._older(name, records[name])) is not None}

        def write() -> Checkpoint:
            # Numbered on each try: the first may have failed after its rename, in the last sync.
            manifest = Manifest(self._next_commit(), step, is_best, state_digest, records, about)
            return self._write(manifest.signed(), files, bulk, older)

        size = sum(map(len, files.values())) + sum(array.size for name, array in bulk.items() if name not in older)
        try:
            checkpoint = self._with_reserve(write)
        except OSError as error:
            doing = f"write the checkpoint of step {step}"
            raise atomic.write_error(error, doing=doing, directory=self.directory, needed=size) from error
        # The checkpoint is safe by now; what cannot be removed is tried again after the next one.
        with suppress(OSError):
            self._retire()
        self._reserve.hold(size)
        return checkpoint

    @property
    def has_ever_committed(self) -> bool:
        """Whether there is, or was, any checkpoint, valid or not."""
        return self._next_commit() > 1

    def sweep(self) -> list[str]:
        """Removes leftovers of killed processes and moves damaged checkpoints aside; returns the warnings."""
        atomic.make_directory(self.directory)
        for name in [*self._names(atomic.TEMPORARY_PREFIX), *self._names(TRASH_PREFIX)]:
            atomic.remove_tree(self.directory / name)
        usable: Path | None = None
        sound: set[int] = set()
        damaged: list[tuple[Path, Flaw]] = []
        for path in reversed(self.paths()):
            try:
                checkpoint_files.read_checkpoint(path, sound=sound)
            except Flaw as flaw:
                if flaw.is_damage:
                    damaged.append((path, flaw))
                continue
            usable = usable or path
        return [damage_warning(path, flaw, using=usable, kept_as=self._set_aside(path)) for path, flaw in damaged]

    def admit(self, num_bytes: int) -> list[str]:
        """Checks at start that a checkpoint of that size can be written; warns if space is short."""
        try:
            atomic.make_directory(self.directory)
            disk_reserve.probe(self.directory, num_bytes)
        except OSError as error:
            doing = "write a first checkpoint"
            raise atomic.write_error(error, doing=doing, directory=self.directory, needed=num_bytes) from error
        needed, free = (self._keep + 1) * num_bytes, atomic.free_bytes(self.directory)
        if free >= needed:
            return []
        sizes = f"{atomic.format_size(free)} free, keeping {self._keep} needs {atomic.format_size(needed)}"
        return [f"warning[W0801]: disk space is short in {self.directory}: {sizes}"]

    def _next_commit(self) -> int:
        matches = map(_EVER_NAMED.fullmatch, self._names())
        return 1 + max((int(match["commit"]) for match in matches if match), default=0)

    def _with_reserve(self, write: Callable[[], Checkpoint]) -> Checkpoint:
        try:
            return write()
        except OSError as error:
            if not atomic.is_disk_full(error):
                raise
        self._reserve.release()
        return write()

    def _older(self, name: str, record: FileRecord) -> Path | None:
        """Finds the file of a bulk array in an earlier checkpoint."""
        for path in reversed(self.paths()):
            with suppress(OSError):
                if os.lstat(path / name).st_size == record.size:
                    return path / name
        return None

    def _write(
        self, manifest: Manifest, files: Mapping[str, bytes], bulk: Mapping[str, Array], older: Mapping[str, Path]
    ) -> Checkpoint:
        atomic.make_directory(self.directory)
        suffix = f"{manifest.step}-{os.getpid()}-{secrets.token_hex(4)}"
        temporary = self.directory / f"{atomic.TEMPORARY_PREFIX}{suffix}"
        path = self.directory / f"{manifest.commit:06d}-step-{manifest.step}"
        try:
            os.mkdir(temporary, atomic.DIRECTORY_MODE)
            linked = _fill(temporary, {**files, checkpoint_files.MANIFEST: manifest.render()}, bulk, older)
            # Read back before it can be seen: what is listed as valid loads. What was linked was read back before.
            verify(temporary, sound=linked)
            os.rename(temporary, path)
        except BaseException:
            with suppress(OSError):
                atomic.remove_tree(temporary)
            raise
        atomic.sync_directory(self.directory)
        return Checkpoint(path, manifest.commit, manifest.step, manifest.is_best, manifest.digest)

    def _retire(self) -> None:
        sound: list[tuple[Path, Manifest]] = []
        for path in reversed(self.paths()):
            with suppress(Flaw):
                sound.append((path, checkpoint_files.read_manifest(path)))
        best = next((path for path, manifest in sound if manifest.is_best), None)
        every = self._keep_every_updates
        retired = []
        for path, manifest in sound[self._keep :]:
            updates = manifest.about.get("updates")
            is_milestone = every is not None and isinstance(updates, int) and updates > 0 and updates % every == 0
            if path != best and path.name not in self.needed and not is_milestone:
                retired.append(path)
        if not retired:
            return
        trash = [path.with_name(f"{TRASH_PREFIX}{path.name}") for path in retired]
        for path, target in zip(retired, trash, strict=True):
            os.rename(path, target)
        # Else a power cut could bring a name back without its files.
        atomic.sync_directory(self.directory)
        for target in trash:
            atomic.remove_tree(target)

    def _set_aside(self, path: Path) -> Path:
        target = path.with_name(f"{BAD_PREFIX}{path.name}")
        while target.exists():
            target = target.with_name(f"{target.name}+")
        os.rename(path, target)
        return target


def _fill(
    directory: Path, files: Mapping[str, bytes], bulk: Mapping[str, Array], older: Mapping[str, Path]
) -> set[int]:
    """Writes a checkpoint's files; hard-links bulk arrays of an older checkpoint, and returns their inodes."""
    linked = set()
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for name, data in files.items():
            atomic.create_file(name, data, dir_fd=fd)
        for name, array in bulk.items():
            if name in older and _link(older[name], name, fd):
                linked.add(os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino)
            else:
                atomic.create_file(name, array.data, dir_fd=fd)
        os.fsync(fd)
    finally:
        os.close(fd)
    return linked


def _link(source: Path, name: str, directory: int) -> bool:
    """Hard-links a file; returns whether that worked: some file systems cannot, and the file may be gone."""
    try:
        os.link(source, name, dst_dir_fd=directory, follow_symlinks=False)
    except OSError:
        return False
    return True
