"""Trains a run whose ranks Ray Train runs: the driver relays output and stops, and starts all ranks again after a loss.

No rank is here: with one rank the driver itself learns, which costs nothing to start.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from quintain.errors import QuintainError, RankError, ResourceError, SettingsError
from quintain.placements.remote_errors import RemoteTraceback, error_from_json
from quintain.placements.settings import RaySettings
from quintain.runs import launch
from quintain.runs.output import env_name
from quintain.runs.ranks.lead import NUM_RANKS, are_on_ray, num_ranks_of
from quintain.runs.restore import names_given_by, stored_settings
from quintain.runs.sent_parts import pack_parts
from quintain.services.files.atomic import write_error
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import default_run_id, resolve_run, split_checkpoint_suffix
from quintain.services.processes.signals import StopSignals
from quintain.services.reporting.digits import plural
from quintain.services.reporting.writers import RunSummary
from quintain.settings.placement_rules import num_actors_of

if TYPE_CHECKING:
    from quintain.placements.ray.cluster import Cluster
    from quintain.placements.ray.learners import TrainedRanks
    from quintain.runs.assemble import Slots
    from quintain.settings.tree import RunFile
    from quintain.typing import JsonObject

LOOK_SECONDS = 0.1
"""Interval at which the driver looks for messages of ranks."""
ENTRY = "quintain.runs.ranks.ray_rank:take_part"


@dataclass(frozen=True)
class RayRun:
    """A run for ranks under Ray Train: what rank 0 starts or resumes."""

    run_file: RunFile
    """The settings, also of a run that is resumed."""
    directory: Path
    """Absolute: ranks are other processes."""
    shown: Path
    resumes: str | None = None
    """RUN or RUN@CHECKPOINT in the same folder, of a run that exists."""
    overrides: Sequence[str] = ()
    allow: Sequence[str] = ()
    has_settings: bool = True
    """Whether a resumed run is compared with `run_file`; otherwise its own settings count."""
    force: bool = False
    initialize_from: Path | None = None
    slots: Slots | None = None
    notes: Sequence[str] = ()
    continued_by: str | None = None
    """What goes on with a run of objects, in the words of the script that began it; None is the usual call."""

    def to_json(self, probe: str, *, quiet: bool, warnings: Sequence[tuple[str, str]]) -> JsonObject:
        has_settings = self.has_settings or self.resumes is None
        return {
            "settings": self.run_file.to_dict() if has_settings else None,
            "runs_dir": str(self.directory.parent),
            "shown": str(self.shown.parent),
            "run_id": self.directory.name,
            "resumes": self.resumes,
            "overrides": list(self.overrides),
            "allow": list(self.allow),
            "force": self.force,
            "initialize_from": None if self.initialize_from is None else str(self.initialize_from.absolute()),
            "parts": pack_parts(self.run_file),
            "notes": list(self.notes),
            "continued_by": self.continued_by,
            "probe": probe,
            "quiet": quiet,
            "warnings": [list(each) for each in warnings],
        }


@dataclass(frozen=True)
class RayEnd:
    """How the run ended."""

    summary: RunSummary
    digest: str | None
    exit_code: int


def new_run(
    run_file: RunFile,
    *,
    runs_dir: Path,
    run_id: str | None,
    force: bool = False,
    initialize_from: Path | None = None,
    slots: Slots | None = None,
) -> RayRun:
    """Describes a new run; refuses a name that is taken."""
    chosen = run_file.run.id if run_id is None else run_id
    if chosen is None:
        chosen = default_run_id(env_name(run_file), run_file.trained, runs_dir=runs_dir)
    planned = RunDirectory.plan(runs_dir, chosen, force=force)
    return RayRun(
        run_file, planned.path.absolute(), planned.shown, force=force, initialize_from=initialize_from, slots=slots
    )  # fmt: skip


def old_run(
    runs_dir: Path,
    text: str,
    overrides: Sequence[str] = (),
    *,
    allow: Sequence[str] = (),
    run_file: RunFile | None = None,
    slots: Slots | None = None,
) -> RayRun:
    """Describes a run to resume; refuses one that is in use."""
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    with directory.lock():
        _, settings = launch.settings_to_resume(directory, overrides, allow, run_file)
    path = directory.path.absolute()
    resumes = path.name + ("" if which is None else f"@{which}")
    # Whether the run is this user's own was looked at here; another node may not have the key.
    allowed = [*allow, *names_given_by(settings)]
    return RayRun(
        settings, path, directory.shown, resumes, tuple(overrides), allowed, run_file is not None, slots=slots
    )


def resumes_on_ray(
    runs_dir: Path, text: str, overrides: Sequence[str], allow: Sequence[str], run_file: RunFile | None
) -> bool:
    """Whether the ranks of a run that is resumed are workers of Ray Train that this process has to start."""
    directory = RunDirectory.open_existing(resolve_run(runs_dir, split_checkpoint_suffix(text)[0]))
    if run_file is None and directory.config.is_file():
        run_file = stored_settings(directory, *overrides, allow=allow)
    return run_file is not None and are_on_ray(run_file)


def train_on_ray(run: RayRun, *, stream: TextIO | None = None, quiet: bool = False) -> RayEnd:
    """Trains to the end, through losses of ranks; raises the error that ended the run."""
    from quintain.placements.ray.cluster import Cluster

    settings = run.run_file.run.placement
    assert isinstance(settings, RaySettings), "see `are_on_ray`"
    if (settings.address or "").startswith("ray://"):
        raise SettingsError(
            f"run.placement.address: ranks are started by a driver on the cluster, and not through {settings.address}; "
            f"start it there, with the address auto",
            code="E0253",
        )
    signals = StopSignals(run.run_file.run.grace_seconds)
    per_rank = settings.cpus_of_rank + _num_actors(run.run_file) * settings.num_cpus_per_actor
    num_ranks, stream = num_ranks_of(run.run_file), stream or sys.stdout
    if not quiet:
        print(f"note: Ray Train starts {plural(num_ranks, 'rank')}, which can take a minute", file=stream, flush=True)
    cluster = Cluster.join(settings, num_ranks * per_rank, has_ranks=True)
    try:
        return _Driver(cluster, settings, signals, stream, quiet).train(run)
    finally:
        cluster.leave()


class _Driver:
    """Attempts to train a run to its end, one after another."""

    def __init__(
        self, cluster: Cluster, settings: RaySettings, signals: StopSignals, stream: TextIO, quiet: bool
    ) -> None:
        self.cluster, self.settings, self.signals = cluster, settings, signals
        self.stream, self.quiet = stream, quiet
        self.saved: str | None = None
        """The last checkpoint of which a rank told."""
        self.has_begun = False
        """Whether rank 0 has made the run's directory."""
        self.failures: list[tuple[int, QuintainError]] = []
        self.end: RayEnd | None = None

    def train(self, run: RayRun) -> RayEnd:
        num_lost = 0
        warnings: list[tuple[str, str]] = []
        while True:
            fitting = self._fitting(run)
            before = self.saved
            with _probe(run.directory.parent) as probe:
                self._attempt(fitting, fitting.to_json(probe, quiet=self.quiet, warnings=warnings))
            if self.end is not None:
                return self.end
            error = self._reason()
            num_lost = num_lost + 1 if self.saved == before else 1
            if not isinstance(error, RankError) or self.signals.received or num_lost > self.settings.max_failures:
                raise error
            count = f"({num_lost} of {self.settings.max_failures} in a row)"
            # Braces would be taken for the step that is known when the run has been resumed.
            reason = error.message.replace("{", "(").replace("}", ")")
            warnings = [("W0530", f"{reason}; all ranks were started again from step {{step}} {count}")]
            if self.has_begun:
                run = replace(run, resumes=run.directory.name, force=False, initialize_from=None)

    def _attempt(self, run: RayRun, words: JsonObject) -> None:
        """Runs all ranks until they have ended, or one has failed."""
        from quintain.placements.ray.learners import RankTask, TrainedRanks

        self.failures, self.end = [], None
        wanted: list[str] = []
        with self.signals.watching(wanted.append, lambda: self.saved or "none", lambda line: self._write(f"{line}\n")):
            task, num_ranks = RankTask(ENTRY, words, run.slots), num_ranks_of(run.run_file)
            learners = TrainedRanks(self.cluster, self.settings, num_ranks, task, run.directory)
            try:
                self._listen(learners, wanted)
            finally:
                learners.close()
            self.lost, self.error = learners.lost, learners.error

    def _listen(self, learners: TrainedRanks, wanted: list[str]) -> None:
        is_over = False
        while not is_over:
            # Once more after the end: what came last is still in the mailbox.
            is_over = learners.is_over
            for message in learners.take(LOOK_SECONDS):
                self._hear(message)
            if wanted:
                if not self.has_begun:
                    self.signals.raise_received()
                learners.stop(wanted.pop())

    def _hear(self, message: JsonObject) -> None:
        if "text" in message:
            self._write(message["text"])
        elif "began" in message:
            self.has_begun = True
        elif "saved" in message:
            self.saved = message["saved"]
        elif "failed" in message:
            rank = int(message["rank"])
            self.failures.append((rank, error_from_json(message["failed"], f"rank {rank}: " if rank else "")))
        elif "ended" in message:
            end = message["ended"]
            # Ranks stop together: another may have heard of the signal, and rank 0 have ended before it did.
            exit_code = end["exit_code"] or self.signals.exit_code or 0
            self.end = RayEnd(RunSummary(**end["summary"]), end["digest"], exit_code)

    def _reason(self) -> QuintainError:
        """Returns the error of the rank that failed by itself, or a loss of ranks."""
        for _, error in self.failures:
            # One that only lost another is not the cause.
            if error.code != RankError.default_code:
                return error
        told = {rank for rank, _ in self.failures}
        dead = [rank for rank in self.lost if rank not in told]
        who = f"rank {dead[0]} died" if dead else "a rank was lost"
        error = RankError(
            f"{who} under Ray Train, and the others cannot learn without it",
            notes=("help: continue from the last checkpoint with: quintain resume",),
        )
        error.__cause__ = RemoteTraceback(str(self.error))
        return error

    def _fitting(self, run: RayRun) -> RayRun:
        """Returns the run with as many ranks as the cluster can hold, down to `min_ranks`; refuses it otherwise."""
        num_ranks = num_ranks_of(run.run_file)
        refusal: QuintainError | None = None
        for number in range(num_ranks, (self.settings.min_ranks or num_ranks) - 1, -1):
            try:
                run_file = run.run_file.replace(NUM_RANKS, number) if number != num_ranks else run.run_file
                self.cluster.require_room(number, _num_actors(run_file) * number, self.settings)
            except (ResourceError, SettingsError) as error:
                refusal = refusal or error
                continue
            if number == num_ranks:
                return run
            return replace(run, run_file=run_file, overrides=(*run.overrides, f"{NUM_RANKS}={number}"))
        assert refusal is not None
        raise refusal

    def _write(self, text: str) -> None:
        if not self.quiet:
            self.stream.write(text)
            self.stream.flush()


def _num_actors(run_file: RunFile) -> int:
    return num_actors_of(run_file.experiment.env, run_file.run.placement)


@contextmanager
def _probe(runs_dir: Path) -> Iterator[str]:
    """Leaves a file in the folder of runs, which rank 0 takes away if it sees the same folder; returns its name."""
    name = f".probe-{uuid.uuid4().hex}"
    try:
        runs_dir.mkdir(parents=True, exist_ok=True)
        (runs_dir / name).touch()
    except OSError as error:
        raise write_error(error, doing="create the run", directory=runs_dir) from error
    try:
        yield name
    finally:
        (runs_dir / name).unlink(missing_ok=True)
