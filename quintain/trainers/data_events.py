"""Events on the data: files of transitions for debugging, and additional metrics."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
from safetensors import numpy as safetensors_numpy

from quintain.data.rollout import Rollout
from quintain.errors import SettingsError
from quintain.services.events import When
from quintain.services.files import atomic
from quintain.trainers.events import EventContext

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.trainers.base import Trainer
    from quintain.trainers.settings import CollectDataSettings, LogDataSettings

_FILE_NAME = re.compile(r"rollout-(\d+)\.safetensors")


class CollectData:
    """Writes rollouts to `rollouts/rollout-<number>.safetensors`, fields [N, T+1, ...]; old files are removed."""

    def __init__(self, settings: CollectDataSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()

    def __call__(self, trainer: Trainer) -> None:
        # The others write nothing; what is kept are the lanes of rank 0.
        if trainer.world.rank:
            return
        rollout = trainer.taken.rollout
        names = _checked(rollout, self.settings.fields)
        folder = trainer.session.folder("rollouts")
        # Time-major memory is turned, because the public shape of a field is [N, T+1, ...].
        tensors = {name: np.ascontiguousarray(np.swapaxes(rollout.array(name), 0, 1)) for name in names}
        about = {
            "spec": json.dumps(rollout.spec.to_dict()),
            "env_steps": str(trainer.progress.env_steps),
            "policy_version": str(int(rollout.array("policy_version")[0, 0])),
        }
        data = safetensors_numpy.save(tensors, metadata=about)
        path = folder / f"rollout-{rollout.sequence:06d}.safetensors"
        try:
            atomic.replace_file(path, data)
        except OSError as error:
            raise atomic.write_error(error, doing="write a rollout", directory=folder, needed=len(data)) from error
        _retire(folder, self.settings.keep)


class LogData:
    """Reports `data/<field>_mean`, `_std`, `_min` and `_max` over valid steps."""

    def __init__(self, settings: LogDataSettings, context: EventContext) -> None:
        self.settings = settings
        self.when: When = settings.when()

    def __call__(self, trainer: Trainer) -> None:
        batch = trainer.taken
        for name in _checked(batch.rollout, self.settings.fields):
            values = batch.rollout.flat(name)[batch.valid_rows].double()
            numbers = {"mean": values.mean(), "std": values.std(correction=0), "min": values.min(), "max": values.max()}
            trainer.stats.set_all({f"data/{name}_{what}": float(value) for what, value in numbers.items()})


def _checked(rollout: Rollout, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
    for name in wanted or ():
        if name not in rollout.storage:
            raise SettingsError(
                f"events name the field {name!r}, which rollouts do not have; they have {', '.join(rollout.storage)}",
                code="E0205",
            )
    return tuple(rollout.storage) if wanted is None else wanted


def _retire(folder: Path, keep: int) -> None:
    found = {path: _FILE_NAME.fullmatch(path.name) for path in folder.iterdir()}
    numbers = {path: int(match[1]) for path, match in found.items() if match}
    for path in sorted(numbers, key=numbers.__getitem__)[:-keep]:
        path.unlink(missing_ok=True)
