"""Finds, verifies and loads committed checkpoints; it only reads, so it needs no lock.

There is no pointer to the latest checkpoint: it is the highest commit that verifies.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import CheckpointError, CheckpointNotFound
from quintain.services.checkpoints import files as checkpoint_files
from quintain.services.checkpoints import state_files
from quintain.services.checkpoints.files import CHECKPOINT_NAME, Flaw, Manifest
from quintain.services.checkpoints.state_files import EncodedState
from quintain.services.files import atomic

if TYPE_CHECKING:
    from quintain.typing import Json, State

BAD_PREFIX = ".bad-"
"""Begins the name of a damaged checkpoint that was moved aside."""
FOLDER = "checkpoints"
"""The name of the checkpoints' folder in a run directory."""

Notify = Callable[[str], None]


@dataclass(frozen=True)
class Checkpoint:
    """Names one committed checkpoint."""

    path: Path
    commit: int
    step: int
    is_best: bool
    digest: str

    @property
    def name(self) -> str:
        """Returns the directory's name, such as `000012-step-98304`."""
        return self.path.name


@dataclass(frozen=True)
class Score:
    """The mean return of one behaviour's policy when a checkpoint was committed, and the episodes it is the mean of."""

    behavior: str
    mean: float
    episodes: int
    kind: str
    """`evaluation` or `training`."""


@dataclass(frozen=True)
class CatalogEntry:
    """Describes one checkpoint in a listing, usable or not; `reason` is empty when it is valid."""

    path: Path
    commit: int
    step: int
    valid: bool
    reason: str
    is_best: bool
    """Whether it is the one that RUN@best names."""
    scores: tuple[Score, ...] = ()


@dataclass(frozen=True)
class Loaded:
    """Holds a checkpoint's state, with NumPy arrays for tensors, and its manifest."""

    state: State
    manifest: Manifest


class CheckpointCatalog:
    """Lists the checkpoints in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def entries(self) -> list[CatalogEntry]:
        """Lists every checkpoint, oldest first, each verified; leaves out one that is retired meanwhile."""
        described = [describe(path) for path in self.paths()]
        best = max((entry.commit for entry in described if entry.is_best), default=None)
        return [
            replace(entry, is_best=entry.commit == best)
            for entry in described
            if entry.valid or os.path.lexists(entry.path)
        ]

    def latest(self, notify: Notify) -> Checkpoint:
        """Returns the newest checkpoint that verifies, and warns about damaged newer ones."""
        damaged: list[tuple[Path, Flaw]] = []
        for path in reversed(self.paths()):
            try:
                manifest, _ = checkpoint_files.read_checkpoint(path)
            except Flaw as flaw:
                if not flaw.is_damage:
                    raise flaw.as_error(path) from flaw
                if os.path.lexists(path):
                    damaged.append((path, flaw))
                continue
            for damaged_path, damage in damaged:
                notify(damage_warning(damaged_path, damage, using=path))
            return _checkpoint(path, manifest)
        num_damaged = len(damaged) + len(self._names(BAD_PREFIX))
        evidence = f"{num_damaged} damaged; see {BAD_PREFIX}*" if num_damaged else "none was committed"
        raise CheckpointNotFound(f"no usable checkpoint in {self.directory} ({evidence})")

    def best(self) -> Checkpoint:
        """Returns the newest checkpoint that was committed as the best and verifies."""
        for entry in reversed(self.entries()):
            if entry.valid and entry.is_best:
                return verify(entry.path)
        raise CheckpointNotFound(f"no checkpoint in {self.directory} is marked best. Use latest instead")

    def find(self, which: str, notify: Notify) -> Checkpoint:
        """Returns the checkpoint called `latest`, `best`, a step such as `8192`, or by its full name."""
        if which == "latest":
            return self.latest(notify)
        if which == "best":
            return self.best()
        paths = self.paths()
        for path in reversed(paths):
            if which in (path.name, path.name.partition("-step-")[2]):
                return verify(path)
        have = ", ".join(path.name for path in paths) or "none"
        message = f"no checkpoint {which!r} in {self.directory}. Choose latest, best or one of: {have}"
        raise CheckpointNotFound(message)

    def paths(self) -> list[Path]:
        """Returns everything named like a checkpoint, oldest commit first."""
        named = [(CHECKPOINT_NAME.fullmatch(name), name) for name in self._names()]
        commits = sorted((int(match["commit"]), name) for match, name in named if match)
        return [self.directory / name for _, name in commits]

    def _names(self, prefix: str = "") -> list[str]:
        if self.directory.is_symlink():
            raise atomic.NotPlain(self.directory, "folder").as_error()
        if not self.directory.is_dir():
            return []
        return sorted(path.name for path in self.directory.iterdir() if path.name.startswith(prefix))


def resolve(path: Path, notify: Notify = lambda text: None) -> Path:
    """Returns the checkpoint directory a path means: itself, or the latest in a run or checkpoints folder."""
    if path.is_symlink():
        path = path.resolve()
    if path.is_dir():
        if CHECKPOINT_NAME.fullmatch(path.name) or (path / checkpoint_files.MANIFEST).exists():
            return path
        folder = path / FOLDER
        return CheckpointCatalog(folder if folder.is_dir() else path).latest(notify).path
    if not path.is_file():
        raise CheckpointNotFound(f"no checkpoint at {path}. Choose one from: quintain checkpoints list RUN")
    try:
        checkpoint_files.refuse_pickle(path)
    except Flaw as flaw:
        raise flaw.as_error(path) from flaw
    raise CheckpointError(f"{path} is a file, expected the directory of a checkpoint or a run", code="E0404")


def verify(path: Path, *, sound: set[int] | None = None) -> Checkpoint:
    """Verifies every byte of a checkpoint and that it loads; raises CheckpointError with the reason otherwise.

    Only bulk arrays whose inode is in `sound` are not read again.
    """
    path = resolve(path)
    manifest, _ = _read(path, sound=sound)
    return _checkpoint(path, manifest)


def load(path: Path) -> Loaded:
    """Verifies a checkpoint and returns its state."""
    manifest, encoded = _read(resolve(path))
    return Loaded(state_files.decode(encoded), manifest)


def digest(path: Path) -> str:
    """Computes the digest of a checkpoint's state from its files, not from its manifest."""
    _, encoded = _read(resolve(path))
    return encoded.digest()


def describe(path: Path) -> CatalogEntry:
    """Verifies one checkpoint for a listing; a damaged one gives a line, not an error."""
    match = CHECKPOINT_NAME.fullmatch(path.name)
    commit, step = (int(match["commit"]), int(match["step"])) if match else (0, 0)
    try:
        manifest, _ = checkpoint_files.read_checkpoint(path)
    except Flaw as flaw:
        return CatalogEntry(path, commit, step, valid=False, reason=flaw.reason, is_best=False)
    scores = scores_in(manifest.about)
    return CatalogEntry(path, manifest.commit, manifest.step, True, "", manifest.is_best, scores)


def scores_in(about: Mapping[str, Json]) -> tuple[Score, ...]:
    """Returns the scores in a manifest, which is untrusted; older ones have none."""
    found = about.get("scores")
    scores = []
    for entry in found if isinstance(found, list) else []:
        match entry:
            case [str(name), float(mean), int(episodes), str(kind)] if math.isfinite(mean):
                scores.append(Score(name, mean, episodes, kind))
    return tuple(scores)


def damage_warning(path: Path, flaw: Flaw, *, using: Path | None, kept_as: Path | None = None) -> str:
    """Returns the warning about a damaged checkpoint: the reason, the replacement, and where it was moved."""
    instead = f"; using {using.name}" if using is not None else ""
    kept = f". Damaged copy kept as {kept_as.name}" if kept_as is not None else ""
    return f"warning[W0401]: checkpoint {path.name} is damaged ({flaw.reason}){instead}{kept}"


def _read(path: Path, *, sound: set[int] | None = None) -> tuple[Manifest, EncodedState]:
    try:
        return checkpoint_files.read_checkpoint(path, sound=sound)
    except Flaw as flaw:
        raise flaw.as_error(path) from flaw


def _checkpoint(path: Path, manifest: Manifest) -> Checkpoint:
    return Checkpoint(path, manifest.commit, manifest.step, manifest.is_best, manifest.digest)
