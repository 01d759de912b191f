"""Manages the models of each behaviour in `training_status.json`: the newest, the best by reward, the last.

The file is replaced atomically, so that a kill leaves the old list or the new one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from quintain.services import plain_files
from quintain.services.files import atomic
from quintain.typing import Json

LOGS = "run_logs"
"""The folder of status and timers in a run."""
STATUS_FILE = "training_status.json"
FORMAT_VERSION = "0.3.0"
CHECKPOINTS, FINAL, LESSON, METADATA = "checkpoints", "final_checkpoint", "lesson_num", "metadata"
_MAX_BYTES = 10_000_000


@dataclass(frozen=True)
class ModelCheckpoint:
    """One model of a behaviour; fields are named as in ML-Agents' file, paths are relative to the run."""

    steps: int
    file_path: str
    reward: float | None
    creation_time: float
    auxillary_file_paths: tuple[str, ...] = ()

    @classmethod
    def of_now(cls, steps: int, path: str, reward: float | None, others: tuple[str, ...]) -> ModelCheckpoint:
        return cls(steps, path, reward, time.time(), others)


class ModelCheckpointManager:
    """Keeps the list of each behaviour's models, and removes the files of retired ones."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.path = run / LOGS / STATUS_FILE
        self.checkpoints: dict[str, list[ModelCheckpoint]] = {}
        self.final: dict[str, ModelCheckpoint] = {}
        self._read()

    def get_checkpoints(self, behavior_name: str) -> list[ModelCheckpoint]:
        """Returns the kept models, oldest first."""
        return list(self.checkpoints.get(behavior_name, []))

    def add_checkpoint(self, behavior_name: str, new_checkpoint: ModelCheckpoint, keep_checkpoints: int) -> None:
        """Adds a model and retires others: the newest are kept, and the best by reward.

        A model of a later step was made before a rollback of the run, and is made again.
        """
        earlier = self.get_checkpoints(behavior_name)
        kept = [each for each in earlier if each.steps < new_checkpoint.steps]
        kept.append(new_checkpoint)
        rewarded = [each for each in kept if each.reward is not None]
        # Of equals the later one, as with checkpoints.
        best = max(rewarded, key=lambda each: (each.reward, each.steps), default=None)
        kept = [each for i, each in enumerate(kept) if i >= len(kept) - keep_checkpoints or each is best]
        paths = {each.file_path for each in kept}
        for each in earlier:
            if each.file_path not in paths:
                self.remove_checkpoint(each)
        self.checkpoints[behavior_name] = kept

    def track_final_checkpoint(self, behavior_name: str, final_checkpoint: ModelCheckpoint) -> None:
        self.final[behavior_name] = final_checkpoint

    def remove_checkpoint(self, checkpoint: ModelCheckpoint) -> None:
        """Removes a model's file, but never the run's own checkpoints."""
        with suppress(OSError):
            (self.run / checkpoint.file_path).unlink(missing_ok=True)

    def save(self, lessons: Mapping[str, int], versions: Mapping[str, Any]) -> None:
        """Replaces the file: lists, the last model of each behaviour, lessons, and versions."""
        document: dict[str, Json] = {
            METADATA: {"stats_format_version": FORMAT_VERSION, **{f"{k}_version": v for k, v in versions.items()}}
        }
        for name in [*self.checkpoints, *(each for each in self.final if each not in self.checkpoints)]:
            document[name] = {
                CHECKPOINTS: [self._described(each) for each in self.checkpoints.get(name, [])],
                **({FINAL: self._described(self.final[name])} if name in self.final else {}),
            }
        for name, number in lessons.items():
            document[name] = {**_mapping(document.get(name)), LESSON: number}
        plain_files.make_folder(self.path.parent)
        atomic.replace_file(self.path, f"{json.dumps(document, indent=4)}\n".encode())

    def _read(self) -> None:
        """Reads the list of an earlier process; an unreadable file starts a new list."""
        try:
            document = _mapping(json.loads(plain_files.read(self.path, _MAX_BYTES)))
            for name, entry in document.items():
                found = [_checkpoint(each) for each in _mapping(entry).get(CHECKPOINTS, [])]
                if found:
                    self.checkpoints[name] = [each for each in found if self._is_model(each.file_path)]
                if FINAL in _mapping(entry):
                    self.final[name] = _checkpoint(_mapping(entry)[FINAL])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            self.checkpoints, self.final = {}, {}

    def _is_model(self, path: str) -> bool:
        """Whether a listed file exists inside the run; others are never removed."""
        found = self.run / path
        # A link on the way, and "..", would make the two differ.
        is_within = not Path(path).is_absolute() and found.resolve() == self.run.resolve() / path
        return is_within and found.is_file()

    def _described(self, checkpoint: ModelCheckpoint) -> Json:
        present = [path for path in checkpoint.auxillary_file_paths if (self.run / path).exists()]
        return {**asdict(checkpoint), "auxillary_file_paths": present}


def _checkpoint(words: Any) -> ModelCheckpoint:
    reward = words["reward"]
    return ModelCheckpoint(
        steps=int(words["steps"]),
        file_path=str(words["file_path"]),
        reward=None if reward is None else float(reward),
        creation_time=float(words["creation_time"]),
        auxillary_file_paths=tuple(map(str, words["auxillary_file_paths"])),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value) if isinstance(value, Mapping) else {}
