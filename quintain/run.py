"""One run: a trainer with its directory, output, checkpoints and signals. Without a directory it only shows progress."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain import registry
from quintain.errors import CheckpointIncompatible, ResourceError
from quintain.services.checkpoint_catalog import Checkpoint, Loaded, load
from quintain.services.checkpoints import CheckpointManager
from quintain.services.event_log import EventLog
from quintain.services.metrics_file import MetricsFile
from quintain.services.run_directory import RunDirectory, Status
from quintain.services.signals import StopSignals
from quintain.services.writers import RunHeader, RunSummary, Writer, WriterGroup
from quintain.versions import facts, quintain_version

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile
    from quintain.trainers.base import Trainer

MAX_FAILED_COMMITS = 3


class Run:
    """Surrounds training: it implements the trainer's `Session`."""

    def __init__(
        self, run_file: RunFile, writers: list[Writer], directory: RunDirectory | None = None, *, resources: ExitStack | None = None
    ) -> None:
        self.run_file = run_file
        self.writer = WriterGroup(writers)
        self.signals = StopSignals(run_file.run.grace_seconds)
        self.directory = directory
        self.commands = CommandHints(directory)
        self.checkpoints: CheckpointManager | None = None
        self.metrics: MetricsFile | None = None
        self.event_log: EventLog | None = None
        self.last: Checkpoint | None = None
        self.last_commit_time = time.monotonic()
        self.failed_commits = 0
        self.state = "running"
        self.resources = resources or ExitStack()
        self.is_header_shown = False

    # -- before training ------------------------------------------------------------------------------------------

    def show_header(self, *, start_step: int = 0) -> None:
        """Prints what is about to happen; needs no torch, so it can come before the slow imports."""
        if not self.is_header_shown:
            self.is_header_shown = True
            self.writer.open(header_of(self.run_file, self.directory, start_step))

    def open_directory(self, directory: RunDirectory) -> None:
        """Clears up after a killed process and opens the files; the caller holds the run's lock in `resources`."""
        self.directory = directory
        self.commands = CommandHints(directory)
        self.checkpoints = CheckpointManager(directory.checkpoints, keep=self.run_file.run.checkpoint.keep)
        for warning in self.checkpoints.sweep():
            self.writer.note(warning)
        self.metrics = MetricsFile(directory.metrics, warn=self.writer.note)
        self.resources.callback(self.metrics.close)
        self.event_log = EventLog(directory.events)
        self.resources.callback(self.event_log.close)

    def write_settings(self) -> None:
        assert self.directory is not None
        self.directory.write_config(self.run_file.to_yaml())
        self.directory.write_environment(facts(self.run_file.run.threads))

    def restore(self, trainer: Trainer, checkpoint: Checkpoint) -> None:
        """Puts a fresh trainer where the checkpoint stands and drops the metric rows after it."""
        assert self.directory is not None
        assert self.metrics is not None
        loaded = load(checkpoint.path)
        require_same_spec(trainer, loaded)
        restore_trainer(trainer, loaded)
        trainer.progress.budget_env_steps = self.run_file.experiment.budget.env_steps
        self.last = checkpoint
        self.metrics.truncate_after(checkpoint.step)
        if note := self.directory.describe_unclosed(checkpoint.step):
            self.writer.note(note)
        self.log("resumed", trainer, detail={"checkpoint": checkpoint.name})
        if trainer.source.exactness != "exact":
            self.writer.note(f"warning[W0402]: this resume is not exact; {trainer.source.exactness}")

    # -- while training (the trainer's Session) -------------------------------------------------------------------

    @contextmanager
    def running(self, trainer: Trainer) -> Iterator[None]:
        """Opens the run, and closes it whatever happens."""
        self.show_header(start_step=trainer.progress.env_steps)
        self.state = "running"
        self._write_status(trainer)
        if self.checkpoints is not None and self.last is None:
            self._commit(trainer)
        try:
            with self.signals.watching(trainer.stop, lambda: self.last.name if self.last else "none"):
                yield
                self.state = "stopped" if trainer.stop_reason else "finished"
                self._commit_last(trainer)
        except BaseException as error:
            self.state = "failed"
            self._write_status(trainer, exit_code=getattr(error, "exit_code", 1), reason=str(error))
            self.log("failed", trainer, code=getattr(error, "code", None), detail=str(error))
            raise
        finally:
            self.writer.close(self.summary(trainer))
        self._write_status(trainer, exit_code=self.exit_code, reason=trainer.stop_reason or None)
        trainer.stop_reason = ""

    def after_cycle(self, trainer: Trainer) -> None:
        """Writes the row and the checkpoint that are due, in this order."""
        progress = trainer.progress
        if progress.updates % self.run_file.run.report.every_updates == 0 or trainer.is_finished:
            self._report(trainer)
        if self.checkpoints is not None and self._is_commit_due(trainer):
            self._try_commit(trainer)

    def save(self, trainer: Trainer) -> Path:
        """Commits a checkpoint now; a run without a directory gets one."""
        if self.checkpoints is None:
            from quintain.services.run_names import default_run_id

            behavior = next(iter(self.run_file.experiment.behaviors.values()))
            run_id = self.run_file.run.id or default_run_id(
                env_name(self.run_file), behavior.algorithm.type, runs_dir=Path("runs")
            )
            directory = RunDirectory.create(Path("runs"), run_id)
            self.resources.enter_context(directory.lock())
            self.open_directory(directory)
            self.write_settings()
        return self._commit(trainer).path

    def summary(self, trainer: Trainer) -> RunSummary:
        records = trainer.records
        return RunSummary(
            state=self.state,  # type: ignore[arg-type]  # one of the three once training ended
            seconds=trainer.stats.total_seconds,
            env_steps=trainer.progress.env_steps,
            best_eval=records.best_return,
            best_step=records.best_step if records.best_return is not None else None,
            num_eval_episodes=records.num_eval_episodes,
            last_checkpoint=None if self.last is None else self.last.name,
            next_commands=self.commands.after(self.state, trainer.progress.budget_env_steps),
        )

    @property
    def exit_code(self) -> int:
        return self.signals.exit_code or 0

    def close(self) -> None:
        self.resources.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _report(self, trainer: Trainer) -> None:
        stats, progress = trainer.stats, trainer.progress
        for name, seconds in trainer.source.drain_seconds().items():
            stats.add_time(name, seconds)
        stats.set_all(trainer.episodes.stats())
        stats.set_stat("time/iterations", progress.updates)
        row = stats.write_stats(progress.env_steps)
        if self.metrics is not None:
            self.metrics.append(progress.env_steps, row)

    def _is_commit_due(self, trainer: Trainer) -> bool:
        every, progress = self.run_file.run.checkpoint, trainer.progress
        return (
            (every.every_env_steps is not None and progress.crossed(every.every_env_steps))
            or (every.every_updates is not None and progress.updates % every.every_updates == 0)
            or (every.every_seconds is not None and time.monotonic() - self.last_commit_time >= every.every_seconds)
            or trainer.records.is_new_best(progress.env_steps)
        )

    def _try_commit(self, trainer: Trainer) -> None:
        """Commits; a full disk is tried again at the next interval, a few times, before the run gives up."""
        try:
            self._commit(trainer)
            self.failed_commits = 0
        except ResourceError as error:
            self.failed_commits += 1
            self.log("checkpoint_failed", trainer, code=error.code, detail=error.message)
            if self.failed_commits >= MAX_FAILED_COMMITS:
                raise
            self.writer.note(f"warning[{error.code.replace('E', 'W')}]: {error.message}; training continues")
            self.last_commit_time = time.monotonic()

    def _commit_last(self, trainer: Trainer) -> None:
        if self.checkpoints is None:
            return
        is_saved = self.last is not None and self.last.step == trainer.progress.env_steps and not trainer.stop_reason
        if not is_saved:
            self._commit(trainer)

    def _commit(self, trainer: Trainer) -> Checkpoint:
        assert self.checkpoints is not None
        if self.metrics is not None:
            self.metrics.sync()
        step = trainer.progress.env_steps
        self.last = self.checkpoints.commit(
            trainer.state_dict(), step=step, about=self._about(trainer), is_best=trainer.records.is_new_best(step)
        )
        self.last_commit_time = time.monotonic()
        self._write_status(trainer)
        return self.last

    def _about(self, trainer: Trainer) -> dict[str, Any]:
        return {
            "fingerprint": self.run_file.fingerprint(),
            "settings": self.run_file.to_dict(),
            "spec": trainer.policy.spec.to_dict(),
            "exactness": trainer.source.exactness,
            "device": str(trainer.policy.device),
            "world_size": 1,
            **facts(self.run_file.run.threads),
        }

    def _write_status(self, trainer: Trainer, exit_code: int | None = None, reason: str | None = None) -> None:
        if self.directory is None or self.checkpoints is None:
            return
        self.directory.write_status(
            Status(
                state=self.state,  # type: ignore[arg-type]  # one of the four by construction
                step=trainer.progress.env_steps,
                checkpoint=None if self.last is None else self.last.name,
                pid=os.getpid(),
                exit_code=exit_code,
                reason=reason,
            )
        )

    def log(self, kind: str, trainer: Trainer, *, code: str | None = None, detail: Any = None) -> None:
        if self.event_log is not None:
            self.event_log.append(kind, step=trainer.progress.env_steps, code=code, detail=detail)


class CommandHints:
    """Names the commands a user may want next; only ones that exist."""

    def __init__(self, directory: RunDirectory | None) -> None:
        self.run_id = None if directory is None else directory.run_id
        default_place = directory is None or directory.path.parent == Path("runs")
        self.place = "" if default_place or directory is None else f" --runs-dir {directory.path.parent}"

    def after(self, state: str, budget: int) -> list[tuple[str, str]]:
        if self.run_id is None:
            return []
        run = f"{self.run_id}{self.place}"
        if state != "finished":
            return [(f"quintain resume {run}", "continue where it stopped")]
        return [
            (f"quintain eval {run} --episodes 100", "play episodes with the result"),
            (f"quintain resume {run} total_timesteps={3 * budget}", "train for longer"),
            (f"quintain checkpoints list {run}", "what was saved"),
        ]


def make_writers(run_file: RunFile, stream: Any = None) -> list[Writer]:
    """Makes the writers that the settings name; the console's stream may be redirected."""
    writers: list[Writer] = []
    for settings in run_file.run.writers:
        make = registry.get("writer", settings.type).load()
        writers.append(make(settings, stream) if settings.type == "console" and stream is not None else make(settings))
    return writers


def header_of(run_file: RunFile, directory: RunDirectory | None, start_step: int) -> RunHeader:
    experiment = run_file.experiment
    return RunHeader(
        version=quintain_version(),
        algorithm=next(iter(experiment.behaviors.values())).algorithm.type,
        env=env_name(run_file),
        num_lanes=experiment.env.num_lanes,  # type: ignore[attr-defined]  # every env has lanes
        device=run_file.run.device,
        cores=run_file.run.threads,
        seed=experiment.seed,
        run_directory=None if directory is None else str(directory.path),
        budget_env_steps=experiment.budget.env_steps,
        start_step=start_step,
    )


def env_name(run_file: RunFile) -> str:
    """Returns what to call the environment: its Gymnasium id, or its registered name."""
    settings = run_file.experiment.env
    return str(getattr(settings, "id", settings.type))


def require_same_spec(trainer: Trainer, loaded: Loaded) -> None:
    """Refuses a checkpoint that was made for other spaces."""
    saved, now = loaded.manifest.about.get("spec"), trainer.policy.spec.to_dict()
    if saved != now:
        raise CheckpointIncompatible(
            f"checkpoint is for {_describe(saved)}; this env has {trainer.policy.spec}. Use the environment it was "
            f"trained with"
        )


def restore_trainer(trainer: Trainer, loaded: Loaded) -> None:
    """Loads the whole state strictly; anything missing, extra or of another shape is an incompatible checkpoint."""
    try:
        trainer.load_state_dict(loaded.state)
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointIncompatible(
            f"the checkpoint does not fit this run ({type(error).__name__}: {first}). Resume with the settings it was "
            f"made with"
        ) from error


def restore_policy(trainer_or_policy: Any, loaded: Loaded) -> None:
    """Loads only the policy's weights and normaliser, strictly."""
    from quintain.trainers.base import as_tensors

    try:
        trainer_or_policy.load_state_dict(as_tensors(loaded.state["training"]["policy"]))
    except (KeyError, RuntimeError) as error:
        first = " ".join(str(error).split())[:200]
        raise CheckpointIncompatible(f"the checkpoint's policy does not fit this one ({first})") from error


def _describe(spec: Any) -> str:
    if not isinstance(spec, Mapping):
        return "unknown spaces"
    return ", ".join(f"{k} {_describe_space(v)}" for k, v in spec.items())


def _describe_space(space: Any) -> str:
    return f"Discrete({space['n']})" if space.get("type") == "discrete" else f"Box({', '.join(map(str, space['shape']))})"
