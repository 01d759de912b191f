"""Reads one checkpoint directory without trusting it: limits, sizes and hashes are checked before any parsing.

Only JSON and safetensors are read. The hashes detect accidents, not attacks: a process that can write the directory can
also write a matching manifest. The manifest's signature tells whether this user made the checkpoint.
"""

from __future__ import annotations

import errno
import hashlib
import json
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from quintain.errors import CheckpointError, CheckpointIncompatible
from quintain.services import signatures
from quintain.services.checkpoints import state_files
from quintain.services.checkpoints.state_files import EncodedState
from quintain.services.files import atomic

if TYPE_CHECKING:
    from quintain.typing import Array, Json

MANIFEST = "manifest.json"
DOCUMENT = "state.json"
TENSORS = "state.safetensors"
FORMAT = "quintain-checkpoint"
SCHEMA = 2
READABLE_SCHEMAS = (1, 2)
"""Schema 1 is the same without a signature."""
MAX_MANIFEST_BYTES = 1_000_000

DAMAGED = "E0401"
INCOMPATIBLE = "E0405"
PICKLED = "E0406"
UNREADABLE = "E0409"

BULK_NAME = re.compile(r"(?P<sha256>[0-9a-f]{64})\.bulk")
"""A bulk array is named by its contents: checkpoints share equal ones by hard links."""

CHECKPOINT_NAME = re.compile(r"(?P<commit>\d{6,12})-step-(?P<step>\d{1,18})")

_SIGNED_AS = "checkpoint"
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_SIZE_LIMITS = {DOCUMENT: state_files.MAX_DOCUMENT_BYTES, TENSORS: 1 << 44}
# They are written in segments of some megabytes, or of one row where a row is larger.
_MAX_BULK_BYTES = 1 << 30
# What opening a link, a file in place of the directory, and a socket gives.
_WRONG_KIND = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO)
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_PICKLE_SUFFIXES = (".pt", ".pth", ".pkl", ".pickle", ".zip", ".ckpt")


class Flaw(Exception):
    """The reason why a directory is not a usable checkpoint; `as_error` converts it to an error for users."""

    def __init__(self, reason: str, code: str = DAMAGED) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code

    @property
    def is_damage(self) -> bool:
        """Whether the checkpoint can never load, not even with another version or at a later time."""
        return self.code in (DAMAGED, PICKLED)

    def as_error(self, path: Path) -> CheckpointError:
        """Returns the error for a request of this checkpoint."""
        where = f"checkpoint {path.name} in {path.parent}"
        choose = "Choose another from: quintain checkpoints list"
        if self.code == INCOMPATIBLE:
            return CheckpointIncompatible(f"{where}: {self.reason}. Use the version that wrote it", code=self.code)
        if self.code == PICKLED:
            return CheckpointError(f"{where}: {self.reason}; pickled checkpoints are never loaded", code=self.code)
        if self.code == UNREADABLE:
            return CheckpointError(f"{where} cannot be read: {self.reason}", code=self.code)
        return CheckpointError(f"{where} is damaged: {self.reason}. {choose}", code=self.code)


@dataclass(frozen=True)
class FileRecord:
    """The manifest's entry of one file."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes | mmap.mmap) -> FileRecord:
        """Describes a file by its contents."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class Manifest:
    """The manifest of a checkpoint; `about` is the caller's (fingerprint, versions)."""

    commit: int
    step: int
    is_best: bool
    digest: str
    files: Mapping[str, FileRecord]
    about: Mapping[str, Json]
    schema: int = SCHEMA
    signature: str | None = None

    def signed(self) -> Manifest:
        """Returns the manifest with this user's signature, if a key can be stored."""
        return replace(self, signature=signatures.sign(_SIGNED_AS, _dump(self._sealed())))

    def doubt(self) -> str | None:
        """Returns why the checkpoint is not known to be this user's; None if the signature verifies."""
        return signatures.doubt_about(_SIGNED_AS, _dump(self._sealed()), self.signature)

    def render(self) -> bytes:
        """Returns the contents of manifest.json, sealed with a hash of itself and signed."""
        content = self._sealed()
        return _dump(content if self.signature is None else {**content, "signature": self.signature})

    def _sealed(self) -> dict[str, Json]:
        content: dict[str, Json] = {
            "format": FORMAT,
            "schema": self.schema,
            "commit": self.commit,
            "step": self.step,
            "is_best": self.is_best,
            "digest": self.digest,
            "files": {name: {"size": file.size, "sha256": file.sha256} for name, file in self.files.items()},
            "about": dict(self.about),
        }
        return {**content, "sha256": hashlib.sha256(_dump(content)).hexdigest()}


def parse_manifest(data: bytes) -> Manifest:
    """Parses manifest.json; any changed byte is a flaw."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Flaw(f"{MANIFEST}: not JSON ({error})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise Flaw(f"{MANIFEST}: not written by quintain", INCOMPATIBLE)
    if type(content.get("schema")) is not int or content["schema"] not in READABLE_SCHEMAS:
        found = f"{MANIFEST}: schema {content.get('schema')!r}, this version reads up to {SCHEMA}"
        raise Flaw(found, INCOMPATIBLE)
    try:
        files = {str(name): FileRecord(file["size"], file["sha256"]) for name, file in content["files"].items()}
        manifest = Manifest(
            commit=content["commit"],
            step=content["step"],
            is_best=content["is_best"],
            digest=content["digest"],
            files=files,
            about=content["about"],
            schema=content["schema"],
            signature=content.get("signature"),
        )
        is_as_written = manifest.render() == data
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Flaw(f"{MANIFEST}: incomplete ({error!r})") from error
    is_typed = type(manifest.commit) is type(manifest.step) is int and type(manifest.is_best) is bool
    is_typed = is_typed and (manifest.signature is None or _SIGNATURE.fullmatch(str(manifest.signature)) is not None)
    if not is_as_written or not is_typed:
        raise Flaw(f"{MANIFEST}: sha256 differs")
    bulk = {name: match["sha256"] for name in files if (match := BULK_NAME.fullmatch(name))}
    if set(files) - set(bulk) != {DOCUMENT, TENSORS}:
        raise Flaw(f"{MANIFEST}: lists {sorted(files)}, expected {DOCUMENT} and {TENSORS}")
    if any(files[name].sha256 != sha256 for name, sha256 in bulk.items()):
        raise Flaw(f"{MANIFEST}: a bulk array has another name than its contents")
    return manifest


def read_manifest(path: Path) -> Manifest:
    """Reads a checkpoint's manifest and compares names and sizes of the files, but not their contents."""
    with _opened(path) as directory:
        manifest = _read_manifest(directory, path.name)
        for name, file in manifest.files.items():
            _check_file(name, os.stat(name, dir_fd=directory, follow_symlinks=False), file)
    return manifest


def read_checkpoint(path: Path, *, sound: set[int] | None = None) -> tuple[Manifest, EncodedState]:
    """Reads and verifies a whole checkpoint; raises Flaw if it cannot be used.

    Bulk arrays whose inode is in `sound` were verified before and are not read again; newly verified ones are added.
    """
    known = set() if sound is None else sound
    with _opened(path) as directory:
        manifest = _read_manifest(directory, path.name)
        # A manifest may name thousands of bulk arrays, all of them holes.
        _require_memory("bulk arrays", sum(file.size for name, file in manifest.files.items() if name != TENSORS))
        contents = {name: _read_file(directory, name, manifest.files[name]) for name in (DOCUMENT, TENSORS)}
        bulk = {
            file.sha256: _map_file(directory, name, file, known)
            for name, file in manifest.files.items()
            if name not in contents
        }
    try:
        encoded = state_files.parse(contents[TENSORS], contents[DOCUMENT], bulk)
        state_files.decode(encoded)
    except ValueError as error:
        raise Flaw(str(error)) from error
    return manifest, encoded


def refuse_pickle(path: Path) -> None:
    """Raises Flaw if a file looks like a pickle or an archive that may contain one."""
    with open(path, "rb") as file:
        start = file.read(8)
    if path.suffix in _PICKLE_SUFFIXES or start.startswith(_PICKLE_STARTS):
        raise _pickled(path.name)


def _read_manifest(directory: int, directory_name: str) -> Manifest:
    found = set(os.listdir(directory))
    pickled = sorted(name for name in found if name.endswith(_PICKLE_SUFFIXES))
    if pickled:
        raise _pickled(pickled[0])
    manifest = parse_manifest(_read_file(directory, MANIFEST, None))
    expected = {MANIFEST, *manifest.files}
    if missing := sorted(expected - found):
        raise Flaw(f"{missing[0]}: missing")
    if extra := sorted(found - expected):
        raise Flaw(f"{extra[0]!r}: not in the manifest")
    named = CHECKPOINT_NAME.fullmatch(directory_name)
    if named and (int(named["commit"]), int(named["step"])) != (manifest.commit, manifest.step):
        raise Flaw(f"{MANIFEST}: belongs to commit {manifest.commit} at step {manifest.step}")
    return manifest


def _read_file(directory: int, name: str, expected: FileRecord | None) -> bytes:
    # O_NONBLOCK: opening a named pipe that someone put here must not wait for a writer.
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(fd)
        start = os.pread(fd, 8, 0) if stat.S_ISREG(found.st_mode) else b""
        _refuse_pickle_in_place(name, start, found.st_size)
        _check_file(name, found, expected)
        if name == TENSORS:
            _judge_tensors(fd, found.st_size)
        with open(fd, "rb", closefd=False) as file:
            data = file.read(found.st_size)
    finally:
        os.close(fd)
    if expected is not None and FileRecord.of(data) != expected:
        raise Flaw(f"{name}: sha256 differs")
    return data


def _judge_tensors(fd: int, size: int) -> None:
    """Refuses a file by its header, and one larger than memory, before it is read: it may be sparse."""
    start = os.pread(fd, 8, 0)
    if not state_files.has_sound_header(start, size):
        raise Flaw(f"{TENSORS}: its header does not fit in the file")
    length = int.from_bytes(start, "little")
    try:
        header = json.loads(os.pread(fd, length, 8))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        end = 8 + length + max(ends, default=0)
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise Flaw(f"{TENSORS}: its header cannot be read ({error!r})") from error
    if end != size:
        raise Flaw(f"{TENSORS}: {size} bytes, and its header describes {end}")
    _require_memory(TENSORS, size)


def _require_memory(name: str, size: int) -> None:
    """Refuses a size that exceeds the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise Flaw(
            f"{name} of {atomic.format_size(size)}, and this machine has {atomic.format_size(memory)} of memory",
            UNREADABLE,
        )


def _map_file(directory: int, name: str, expected: FileRecord, sound: set[int]) -> Array:
    """Maps a bulk array into memory instead of reading it: it may be larger than the free memory."""
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        found = os.fstat(fd)
        _check_file(name, found, expected)
        mapped = mmap.mmap(fd, expected.size, prot=mmap.PROT_READ) if expected.size else b""
    finally:
        os.close(fd)
    if found.st_ino not in sound and FileRecord.of(mapped) != expected:
        raise Flaw(f"{name}: sha256 differs")
    sound.add(found.st_ino)
    return np.frombuffer(mapped, np.uint8)


def _check_file(name: str, found: os.stat_result, expected: FileRecord | None) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise Flaw(f"{name}: not a regular file")
    is_bulk = BULK_NAME.fullmatch(name) is not None
    if found.st_nlink != 1 and not is_bulk:
        raise Flaw(f"{name}: has {found.st_nlink} hard links, expected 1")
    if found.st_size > (_MAX_BULK_BYTES if is_bulk else _SIZE_LIMITS.get(name, MAX_MANIFEST_BYTES)):
        raise Flaw(f"{name}: {found.st_size} bytes is above the limit")
    if expected is not None and found.st_size != expected.size:
        raise Flaw(f"{name}: {found.st_size} bytes, expected {expected.size}")


def _refuse_pickle_in_place(name: str, start: bytes, size: int) -> None:
    # The length that begins a safetensors file may spell a pickle's first bytes; it then fits in the file.
    is_tensors = name == TENSORS and state_files.has_sound_header(start, size)
    if start.startswith(_PICKLE_STARTS) and not is_tensors:
        raise _pickled(name)


def _pickled(name: str) -> Flaw:
    return Flaw(f"{name!r} is a pickle or an archive", PICKLED)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield directory
        finally:
            os.close(directory)
    except FileNotFoundError as error:
        raise Flaw(f"{error.filename}: missing") from error
    except OSError as error:
        name = error.filename or path.name
        if error.errno in _WRONG_KIND:
            raise Flaw(f"{name}: not a regular file") from error
        raise Flaw(f"{name}: {error.strerror}", UNREADABLE) from error


def _dump(content: Mapping[str, Json]) -> bytes:
    return json.dumps(content, allow_nan=False, indent=1).encode() + b"\n"
