"""Files of a run of agents at ML-Agents' paths, in addition to its checkpoints: models for Unity, status, timers.

<run>/<Behavior>.onnx                    the last model, at the end of every run <run>/<Behavior>/<Behavior>-<step>.onnx
models at intervals; the newest and the best by reward are kept <run>/run_logs/training_status.json      those models
and the lessons that are on, with every checkpoint <run>/run_logs/timers.json               where the time went, at the
end
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.behaviors.model_checkpoints import LOGS, ModelCheckpoint, ModelCheckpointManager
from quintain.behaviors.timers_file import TimersFile
from quintain.core.versions import facts
from quintain.errors import QuintainError, ResourceError, RunDirectoryError, SettingsError
from quintain.runs.artifacts import Artifacts
from quintain.services.files import atomic
from quintain.services.files.run_names import file_name

if TYPE_CHECKING:
    from quintain.services.checkpoints.catalog import Checkpoint
    from quintain.services.files.run_directory import RunDirectory
    from quintain.settings.run import RunSettings
    from quintain.trainers.base import Trainer
    from quintain.trainers.learner import Learner
    from quintain.trainers.loop import Loop
    from quintain.typing import Metrics

FEWEST_EPISODES = 10
"""Minimum number of episodes of each behaviour for a meaningful mean return."""


class BehaviorFiles(Artifacts):
    """Writes the files of all behaviours of a run; failures are reported and do not stop training."""

    def __init__(self, settings: RunSettings, directory: RunDirectory) -> None:
        super().__init__(settings, directory)
        self.models = ModelCheckpointManager(directory.path)
        self.timers = TimersFile(directory.path / LOGS)
        self.is_told = False
        self.unwritable: set[str] = set()
        """Behaviours whose policy could not be exported; reported once."""

    @property
    def needed(self) -> frozenset[str]:
        """Names of the run's checkpoints that belong to models which are kept."""
        listed = [each for some in self.models.checkpoints.values() for each in some]
        return frozenset(Path(path).name for each in listed for path in each.auxillary_file_paths)

    def is_due(self, loop: Loop) -> bool:
        """Whether any behaviour has reached its next interval."""
        return any(self._is_due(name, each.progress.env_steps) for name, each in _learners(loop).items())

    def is_best(self, loop: Loop) -> bool:
        """Whether the mean return over behaviours is the highest so far; records it if so.

        A run with evaluations has a better measure.
        """
        if loop.records.best_return is not None:
            return False
        windows = [each.episodes for each in _learners(loop).values()]
        if any(len(window) < FEWEST_EPISODES for window in windows):
            return False
        return loop.records.is_best_of_training(sum(each.mean_return for each in windows) / len(windows))

    def committed(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Writes the models that are due, and the status of all."""
        with self._telling(loop):
            for name, each in _learners(loop).items():
                if self._is_due(name, each.progress.env_steps):
                    self._write_model(name, each, checkpoint)
            self._save_status(loop)

    def finish(self, loop: Loop, checkpoint: Checkpoint) -> None:
        """Writes the last model of each behaviour, the status and the timers."""
        with self._telling(loop):
            for name, each in _learners(loop).items():
                found = self._at(name, each.progress.env_steps) or self._write_model(name, each, checkpoint)
                if found is not None:
                    self._write_last(name, found)
            self._save_status(loop)
            times = loop.stats.total_times
            # There all stages of one update are `advance`.
            seconds = sum(times[stage][0] for stage in loop.stages if stage in times)
            times["advance"] = (seconds, loop.progress.updates)
            acts_beside = self.settings.placement.type != "local"
            self.timers.save(times, self._versions(), are_parallel=frozenset({"act", "env"} if acts_beside else ()))

    @contextmanager
    def _telling(self, loop: Loop) -> Iterator[None]:
        """Converts a failed write to a warning, once in a row: the checkpoint is there."""
        try:
            yield
            self.is_told = False
        except (OSError, ResourceError, RunDirectoryError) as error:
            if not self.is_told:
                said = str(error).strip().partition("\n")[0]
                loop.session.warn(loop, "W0901", f"files of behaviours are not written: {said}")
            self.is_told = True

    def reported(self, row: Metrics) -> None:
        self.timers.reported(row)

    def _is_due(self, name: str, step: int) -> bool:
        every = self.settings.checkpoint.every_env_steps
        earlier = [each.steps for each in self.models.get_checkpoints(name) if each.steps <= step]
        return every is not None and step // every > max(earlier, default=0) // every

    def _at(self, name: str, step: int) -> ModelCheckpoint | None:
        return next((each for each in self.models.get_checkpoints(name) if each.steps == step), None)

    def _write_model(self, name: str, trainer: Learner, checkpoint: Checkpoint) -> ModelCheckpoint | None:
        step = trainer.progress.env_steps
        path = f"{file_name(name)}/{file_name(name)}-{step}.onnx"
        if not self._export(name, trainer, self.run / path):
            return None
        reward = trainer.episodes.mean_return if len(trainer.episodes) else None
        made = ModelCheckpoint.of_now(step, path, reward, (str(checkpoint.path.relative_to(self.run)),))
        self.models.add_checkpoint(name, made, self.settings.checkpoint.keep)
        return made

    def _export(self, name: str, trainer: Learner, path: Path) -> bool:
        """Writes one file; returns whether that worked."""
        if name in self.unwritable:
            return False
        from quintain.policies.unity_export import export_unity

        try:
            export_unity(trainer.policy, path)
        except (ResourceError, RunDirectoryError):
            raise
        except (QuintainError, RuntimeError, ValueError, TypeError) as error:
            self._tell(name, trainer, error)
            return False
        return True

    def _tell(self, name: str, trainer: Learner, error: Exception) -> None:
        """Reports once per behaviour why there is no model; a missing library is no fault."""
        is_first = not self.unwritable
        self.unwritable.add(name)
        said = str(error).strip().partition("\n")[0]
        if isinstance(error, SettingsError) and error.code == "E0242":
            if is_first:
                trainer.writer.note(f"note: no models are written for Unity: {said}")
            return
        told = f"{name}: its model is not written for Unity: {said}; checkpoints are fine"
        trainer.session.warn(trainer.loop, "W0901", told)

    def _write_last(self, name: str, found: ModelCheckpoint) -> None:
        path = f"{file_name(name)}.onnx"
        atomic.replace_file(self.run / path, (self.run / found.file_path).read_bytes())
        last = ModelCheckpoint.of_now(found.steps, path, found.reward, found.auxillary_file_paths)
        self.models.track_final_checkpoint(name, last)

    def _save_status(self, loop: Loop) -> None:
        curriculum = getattr(loop, "curriculum", None)
        self.models.save({} if curriculum is None else curriculum.numbers, self._versions())

    def _versions(self) -> dict[str, Any]:
        found: dict[str, Any] = facts(self.settings.threads)["versions"]
        return {name: found[name] for name in ("quintain", "torch", "numpy", "python")}


def _learners(loop: Loop) -> Mapping[str, Learner]:
    trainer: Trainer = loop  # type: ignore[assignment]  # a run of agents has no other
    return trainer.learners
