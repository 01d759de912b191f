"""Starts, resumes and evaluates runs in a directory: the order of checks, locks and construction.

Invalid requests are refused before torch is imported, before the environment is built, and before anything is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.core.versions import facts
from quintain.errors import CheckpointIncompatible, RunDirectoryError, SettingsError
from quintain.placements.settings import RaySettings
from quintain.runs.output import env_name, make_writers, origin_of
from quintain.runs.ranks.lead import NUM_RANKS, Ranks, num_ranks_of, with_ranks_of_torchrun
from quintain.runs.ranks.orders import Orders
from quintain.runs.restore import (
    change_of_lanes,
    names_given_by,
    restore_policies,
    stored_settings,
)
from quintain.runs.run import Run
from quintain.runs.slow_start import telling_of_start
from quintain.services.checkpoints.catalog import CheckpointCatalog, load, verify
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import default_run_id, resolve_run, split_checkpoint_suffix
from quintain.settings.fingerprint import changed_keys
from quintain.settings.placement_rules import num_actors_of
from quintain.settings.sources import ARGUMENT
from quintain.settings.tree import RunFile
from quintain.settings.tuned import tuned_path

if TYPE_CHECKING:
    from quintain.runs.assemble import Slots
    from quintain.trainers.loop import Loop


@dataclass(frozen=True)
class Launched:
    """A run that is ready to train."""

    run: Run
    trainer: Loop
    directory: RunDirectory


def start(
    run_file: RunFile,
    *,
    runs_dir: Path,
    run_id: str | None,
    force: bool = False,
    initialize_from: Path | None = None,
    stream: Any = None,
    quiet: bool = False,
    slots: Slots | None = None,
) -> Launched:
    """Prepares a new run; its directory is created only when everything else could be built.

    With `initialize_from`, a checkpoint's path, or the setting of that name, it starts with the policies of another.
    Objects in `slots` take the place of parts that the settings would make; the command line cannot make those again.
    """
    run_file = with_ranks_of_torchrun(run_file, is_new=True)
    run_file, weights = with_weights(run_file, runs_dir, initialize_from)
    chosen = run_file.run.id if run_id is None else run_id
    if chosen is None:
        chosen = default_run_id(env_name(run_file), run_file.trained, runs_dir=runs_dir)
    planned = RunDirectory.plan(runs_dir, chosen, force=force)
    writers = make_writers(run_file, stream, quiet=quiet)
    if slots is None or slots.env is None:
        require_known_env(run_file)
    run = Run(run_file, writers, planned, ranks=Ranks(run_file, slots), has_objects=slots is not None, is_quiet=quiet)
    with _closing_on_failure(run.resources), run.ranks.leading(), telling_of_start(run.writer.note):
        run.show_header()
        _show_notes(run, run_file)
        if advice := tuned_advice(run_file):
            run.writer.note(advice)
        trainer = _assemble(run, Orders("begin" if weights is None else "save"), slots)
        if weights is not None:
            loaded = load(weights)
            learners = getattr(trainer, "learners", None)
            if learners is None:
                raise SettingsError("initialize_from gives a policy other weights, and experiment.loop has none")
            restore_policies(learners, loaded)
        exactness = run.begin_together(trainer)
        # With settings and no checkpoint a run begins again when it is resumed, which would lose the weights of
        # another: those are committed first.
        config = run_file.to_yaml() if weights is None else None
        directory = RunDirectory.create(planned.path.parent, chosen, force=force, config=config, shown=planned.shown)
        run.resources.enter_context(directory.lock())
        run.open_directory(directory)
        if weights is not None:
            trainer.begin_from_policy()
            run.save(trainer)
        run.write_settings()
        run.show_determinism(exactness)
    return Launched(run, trainer, directory)


def resume(
    runs_dir: Path,
    text: str,
    overrides: Sequence[str] = (),
    *,
    allow: Sequence[str] = (),
    run_file: RunFile | None = None,
    stream: Any = None,
    quiet: bool = False,
    slots: Slots | None = None,
) -> Launched:
    """Prepares to resume a run from its newest valid checkpoint.

    Settings are the run's own, changed by `overrides`, or those of `run_file`, which may then differ only in settings
    that cannot change results.
    """
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    resources = ExitStack()
    with _closing_on_failure(resources):
        resources.enter_context(directory.lock())
        stored, settings = settings_to_resume(directory, overrides, allow, run_file)
        settings = with_ranks_of_torchrun(settings, is_new=False)
        writers = make_writers(settings, stream, quiet=quiet)
        ranks = Ranks(settings, slots)
        run = Run(
            settings,
            writers,
            directory,
            resources=resources,
            ranks=ranks,
            has_objects=slots is not None,
            is_quiet=quiet,
        )
        with run.ranks.leading(), telling_of_start(run.writer.note):
            trainer = _continue(run, directory, which, changed_keys(stored, settings), slots)
    return Launched(run, trainer, directory)


def _continue(
    run: Run, directory: RunDirectory, which: str | None, changes: list[tuple[str, Any, Any]], slots: Slots | None
) -> Loop:
    """Builds the trainer of a run and restores the checkpoint."""
    run.open_directory(directory)
    assert run.checkpoints is not None
    is_begun = which is not None or directory.has_checkpoint or run.checkpoints.has_ever_committed
    checkpoint = run.checkpoints.find(which or "latest", run.writer.note) if is_begun else None
    run.show_header(start_step=0 if checkpoint is None else checkpoint.step)
    _show_notes(run, run.run_file)
    # Asked to train for longer, a run that once reached its goal goes on until it does again.
    goes_on = any(path.startswith("experiment.budget.") for path, _, _ in changes)
    anew_because = change_of_lanes(changes)
    orders = Orders("begin" if checkpoint is None else "restore", goes_on, anew=bool(anew_because))
    trainer = _assemble(run, orders, slots)
    if checkpoint is None:
        run.begin_together(trainer)
        run.begin_again()
    else:
        try:
            run.restore(trainer, checkpoint, anew_because)
        except CheckpointIncompatible as error:
            if named := [f"{path}={new} (was {old})" for path, old, new in changes if ".budget." not in path]:
                advice = "help: a run keeps its networks and spaces; leave out, or begin a new run with"
                error.notes = (*error.notes, f"{advice} {', '.join(named[:5])}")
            raise
        _report_other_software(run, checkpoint.path)
    if goes_on:
        trainer.records.goal_reached = False
    if changes:
        run.log("settings_changed", trainer, detail=[list(change) for change in changes])
    run.write_settings()
    return trainer


def _assemble(run: Run, orders: Orders, slots: Slots | None) -> Loop:
    """Forms the process group, if there are ranks, and builds the trainer on all of them."""
    env, placement = run.run_file.experiment.env, run.run_file.run.placement
    if isinstance(placement, RaySettings):
        # A local cluster starts while this process imports torch. Imports nothing of Ray's.
        cluster_class = import_module("quintain.placements.ray.cluster").Cluster
        begun = cluster_class.begin(placement, num_actors_of(env, placement) * placement.num_cpus_per_actor)
        run.resources.callback(begun.leave)
    world = run.ranks.meet()
    from quintain.runs.assemble import assemble_loop

    orders.send(world, run.run_file)
    trainer = assemble_loop(run.run_file, run, run.writer, slots, world=world)
    # Nothing is written before everything could be built, on every rank.
    world.barrier()
    return trainer


@contextmanager
def _closing_on_failure(resources: ExitStack) -> Iterator[None]:
    try:
        yield
    except BaseException:
        resources.close()
        raise


def with_weights(run_file: RunFile, runs_dir: Path, given: Path | None) -> tuple[RunFile, Path | None]:
    """Finds the checkpoint that a fork starts with; returns the settings that name exactly this one, and its path."""
    named, digest, origin = run_file.experiment.initialize_from, "", ARGUMENT
    if given is None:
        if named is None:
            return run_file, None
        origin = run_file.origins["experiment.initialize_from"]
        text, _, digest = named.partition("#")
        given = checkpoint_of(runs_dir, text)
    checkpoint = verify(given)
    run = checkpoint.path.parents[1]
    if not checkpoint.digest.startswith(digest):
        raise CheckpointIncompatible(
            f"experiment.initialize_from: {run.name}@{checkpoint.name} is not the one that this fork started with (its "
            f"digest is {checkpoint.digest[:12]}, not {digest}). To take it nevertheless, leave out #{digest}"
        )
    # By its id where it is a neighbour of the new run, so that both can be moved together.
    is_near = run.parent.resolve() == runs_dir.resolve()
    name = run.name if is_near else str(run) if "/" in str(run) else f"./{run}"
    exactly = f"{name}@{checkpoint.name}#{checkpoint.digest[:12]}"
    return run_file.replace("experiment.initialize_from", exactly, origin=origin), checkpoint.path


def checkpoint_of(runs_dir: Path, text: str) -> Path:
    """Finds the checkpoint of RUN or RUN@which."""
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    return CheckpointCatalog(directory.checkpoints).find(which or "latest", lambda text: None).path


def settings_to_resume(
    directory: RunDirectory, overrides: Sequence[str], allow: Sequence[str], run_file: RunFile | None
) -> tuple[RunFile, RunFile]:
    """Returns a run's stored settings, and those with which it goes on; the caller holds its lock."""
    if not directory.config.is_file():
        raise RunDirectoryError(f"nothing to resume in {directory.shown}: it has no config.yaml", code="E0303")
    named = [*allow, *names_given_by(run_file)]
    stored = stored_settings(directory, allow=named)
    if run_file is None:
        settings = stored_settings(directory, *overrides, allow=named)
        if stored.experiment.initialize_from != settings.experiment.initialize_from:
            raise SettingsError(
                f"experiment.initialize_from: a run that is resumed has weights of its own. Begin a new one with: "
                f"quintain train --initialize-from {origin_of(settings) or 'RUN'}",
                code="E0207",
            )
        return stored, settings
    _refuse_other_ranks(stored, run_file, overrides)
    began_with = stored.experiment.initialize_from
    if began_with is not None and run_file.experiment.initialize_from is None:
        # What a run began with does not change: settings that resume it need not repeat it.
        run_file = run_file.replace("experiment.initialize_from", began_with)
    accepted = stored_settings(directory, *overrides, allow=named)
    changes = changed_keys(accepted, run_file)
    if run_file.run.threads != accepted.run.threads:
        changes.append(("run.threads", accepted.run.threads, run_file.run.threads))
    for path, old, new in changes:
        raise SettingsError(
            f"{path} changed {old} -> {new} since this run began, which would change its results. Repeat it as "
            f"{path}={new} to accept, or use another --run-id",
            code="E0207",
        )
    return stored, run_file


def _refuse_other_ranks(stored: RunFile, settings: RunFile, overrides: Sequence[str]) -> None:
    old, new = num_ranks_of(stored), num_ranks_of(settings)
    if old != new and not any(text.partition("=")[0].rpartition(".")[2] == "num_ranks" for text in overrides):
        raise SettingsError(
            f"{NUM_RANKS} changed {old} -> {new} since this run began, so the resume would not be exact. Repeat it as "
            f"num_ranks={new} to accept, or use another --run-id",
            code="E0207",
        )


def require_known_env(run_file: RunFile) -> None:
    """Refuses a misspelt Gymnasium id before anything is printed or built."""
    settings = run_file.experiment.env
    if settings.type == "gym" and ":" not in env_name(run_file):
        from quintain.envs.gym.packages import registered_id

        registered_id(env_name(run_file))


def _show_notes(run: Run, run_file: RunFile) -> None:
    for note in run_file.notes:
        run.writer.note(note)


def tuned_advice(run_file: RunFile, how: str = "--tuned") -> str:
    """Says that there are tuned settings for a run that does not have them; empty where there are none."""
    pair = run_file.trained, env_name(run_file)
    path = None if run_file.experiment.loop is not None else tuned_path(*pair)
    if path is None or any(origin.endswith(path.name) for origin in run_file.origins.values()):
        return ""
    return f"note: there are tuned settings for {' on '.join(pair)}, with scores: {how}"


def _report_other_software(run: Run, checkpoint: Path) -> None:
    about, now = load(checkpoint).manifest.about, facts(run.run_file.run.threads)
    for name in ("versions", "cpu_capability", "machine", "threads"):
        found, current = about.get(name), now[name]
        if isinstance(found, dict):
            # A package that is not imported on one side, or not yet, has no version there.
            both = {key for key, version in found.items() if version and current.get(key)}
            found, current = ({key: each[key] for key in each if key in both} for each in (found, current))
        if found != current:
            run.writer.note(
                f"warning[W0403]: {name} differs from when the checkpoint was made ({found} -> {current}); "
                f"results may differ in the last bits"
            )
