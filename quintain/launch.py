"""Starting, continuing and evaluating runs in a directory: the order in which things are checked, locked and built.

What is wrong with a request is found before torch is imported, before the environment is built, and before anything is
written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import CheckpointNotFound, RunDirectoryError, SettingsError
from quintain.ranks import NUM_RANKS, Orders, Ranks, num_ranks_of, with_ranks_of_torchrun
from quintain.restore import policies_of, policy_of, require_same_spec, restore_policy
from quintain.run import Run
from quintain.run_output import code_names, env_name, make_writers
from quintain.services.checkpoint_catalog import Checkpoint, CheckpointCatalog, load
from quintain.services.run_directory import RunDirectory
from quintain.services.run_names import default_run_id, resolve_run, split_checkpoint_suffix
from quintain.services.video import EpisodeRecorder, require_pillow, save_webp
from quintain.settings.agent_rules import has_agents
from quintain.settings.fingerprint import changed_keys
from quintain.settings.tree import RunFile
from quintain.versions import facts

if TYPE_CHECKING:
    from quintain.policies.export import Exported
    from quintain.rollouts.evaluate import EpisodeResults
    from quintain.trainers.base import Trainer


@dataclass(frozen=True)
class Launched:
    """A run that is ready to train."""

    run: Run
    trainer: Trainer
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
) -> Launched:
    """Prepares a new run; its directory is created only when everything else could be built."""
    run_file = with_ranks_of_torchrun(run_file, is_new=True)
    behavior = next(iter(run_file.experiment.behaviors.values()))
    chosen = run_file.run.id if run_id is None else run_id
    if chosen is None:
        chosen = default_run_id(env_name(run_file), behavior.algorithm.type, runs_dir=runs_dir)
    planned = RunDirectory.plan(runs_dir, chosen, force=force)
    writers = [] if quiet else make_writers(run_file, stream)
    _require_known_env(run_file)
    run = Run(run_file, writers, planned, ranks=Ranks(run_file))
    with _closing_on_failure(run.resources), run.ranks.leading():
        run.show_header()
        _show_notes(run, run_file)
        trainer = _assemble(run, Orders("begin" if initialize_from is None else "save"))
        if initialize_from is not None:
            loaded = load(initialize_from)
            require_same_spec(trainer.policy, loaded)
            restore_policy(trainer.policy, loaded)
        exactness = run.begin_together(trainer)
        # With settings and no checkpoint a run begins again when it is resumed, which would lose the weights of
        # another: those are committed first.
        config = run_file.to_yaml() if initialize_from is None else None
        directory = RunDirectory.create(planned.path.parent, chosen, force=force, config=config, shown=planned.shown)
        run.resources.enter_context(directory.lock())
        run.open_directory(directory)
        if initialize_from is not None:
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
) -> Launched:
    """Prepares to continue a run from its newest sound checkpoint.

    Settings are the run's own, changed by `overrides`, or those of `run_file`, which may then differ only in what
    cannot change a number.
    """
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    resources = ExitStack()
    with _closing_on_failure(resources):
        resources.enter_context(directory.lock())
        stored, settings = _settings_to_resume(directory, overrides, allow, run_file)
        settings = with_ranks_of_torchrun(settings, is_new=False)
        writers = [] if quiet else make_writers(settings, stream)
        run = Run(settings, writers, directory, resources=resources, ranks=Ranks(settings))
        with run.ranks.leading():
            trainer = _continue(run, directory, which, changed_keys(stored, settings))
    return Launched(run, trainer, directory)


def evaluate(
    runs_dir: Path,
    text: str,
    *,
    num_episodes: int,
    deterministic: bool,
    seed: int | None,
    allow: Sequence[str] = (),
    has_video: bool = False,
) -> tuple[EpisodeResults, Path, str | None]:
    """Plays episodes with a run's best policy (or the checkpoint named as RUN@...), and says which it was."""
    directory, run_file, checkpoint = _stored(runs_dir, text, allow)
    loaded = load(checkpoint.path)
    if has_video:
        require_pillow()
        run_file = _with_pictures(run_file)
    recorder = EpisodeRecorder() if has_video else None

    import torch

    from quintain.acting import env_maker
    from quintain.assemble import make_policy, resolve_device
    from quintain.rng import Rng
    from quintain.rollouts.evaluate import Evaluator
    from quintain.trainers.events import MAX_EVAL_LANES

    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed if seed is None else seed).child("eval_command")
    env = env_maker(run_file)(min(num_episodes, MAX_EVAL_LANES), rng.child("env"))
    policy = make_policy(run_file, env.spec)
    require_same_spec(policy, loaded)
    restore_policy(policy, loaded)
    policy.to(resolve_device(run_file.run.device))
    env_settings: Any = run_file.experiment.env
    results = Evaluator(env, num_episodes, rng, on_nonfinite=env_settings.on_nonfinite).play(
        policy, deterministic=deterministic, should_stop=lambda: False, on_step=recorder
    )
    env.close()
    assert results is not None
    video = None
    if recorder is not None:
        path = directory.folder("videos") / f"{checkpoint.name}.webp"
        save_webp(path, recorder.frames, recorder.frames_per_second)
        video = directory.show(path)
    return results, checkpoint.path, video


def evaluate_behaviors(
    runs_dir: Path,
    text: str,
    *,
    num_episodes: int,
    deterministic: bool,
    seed: int | None,
    allow: Sequence[str] = (),
) -> tuple[dict[str, EpisodeResults], Path] | None:
    """Plays episodes with the policies of a run of agents, and says of which checkpoint; None for any other run."""
    _, run_file, checkpoint = _stored(runs_dir, text, allow)
    if not has_agents(run_file.experiment):
        return None
    from quintain.infer import evaluate_agents

    results = evaluate_agents(
        run_file, checkpoint.path, num_episodes=num_episodes, is_deterministic=deterministic, seed=seed
    )
    return results, checkpoint.path


def export(runs_dir: Path, text: str, *, out: Path | None = None, allow: Sequence[str] = ()) -> tuple[Exported, Path]:
    """Writes a run's best policy (or the checkpoint named as RUN@...) as ONNX, and says which it was.

    Needs no environment: the checkpoint says for which spaces the policy is.
    """
    directory, run_file, checkpoint = _stored(runs_dir, text, allow)
    loaded = load(checkpoint.path)

    import torch

    from quintain.assemble import make_policy
    from quintain.policies.export import export_onnx

    torch.set_num_threads(run_file.run.threads)
    policy = policy_of(loaded, partial(make_policy, run_file))
    about = _export_facts(directory, checkpoint)
    return export_onnx(policy, out or Path(directory.show(directory.folder("export"))), about), checkpoint.path


def export_behaviors(
    runs_dir: Path, text: str, *, out: Path | None = None, allow: Sequence[str] = ()
) -> tuple[dict[str, Exported], Path] | None:
    """Writes the policies of a run of agents, each into a folder of its own; None for any other run."""
    directory, run_file, checkpoint = _stored(runs_dir, text, allow)
    if not has_agents(run_file.experiment):
        return None

    import torch

    from quintain.assemble_agents import behavior_policy
    from quintain.policies.export import export_onnx

    torch.set_num_threads(run_file.run.threads)
    policies = policies_of(load(checkpoint.path), partial(behavior_policy, run_file))
    folder = out or Path(directory.show(directory.folder("export")))
    about = _export_facts(directory, checkpoint)
    written = {
        name: export_onnx(policy, folder / name, {**about, "behavior": name}) for name, policy in policies.items()
    }
    return written, checkpoint.path


def _export_facts(directory: RunDirectory, checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "run": directory.run_id,
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "digest": checkpoint.digest,
    }


def _continue(run: Run, directory: RunDirectory, which: str | None, changes: list[tuple[str, Any, Any]]) -> Trainer:
    """Builds the trainer of a run and puts it where the checkpoint stands."""
    run.open_directory(directory)
    assert run.checkpoints is not None
    is_begun = which is not None or directory.has_checkpoint or run.checkpoints.has_ever_committed
    checkpoint = run.checkpoints.find(which or "latest", run.writer.note) if is_begun else None
    run.show_header(start_step=0 if checkpoint is None else checkpoint.step)
    _show_notes(run, run.run_file)
    # Asked to train for longer, a run that once reached its goal goes on until it does again.
    goes_on = any(path == "experiment.budget.env_steps" for path, _, _ in changes)
    trainer = _assemble(run, Orders("begin" if checkpoint is None else "restore", goes_on))
    if checkpoint is None:
        run.begin_together(trainer)
        run.begin_again()
    else:
        run.restore(trainer, checkpoint)
        _report_other_software(run, checkpoint.path)
    if goes_on:
        trainer.records.goal_reached = False
    if changes:
        run.log("settings_changed", trainer, detail=[list(change) for change in changes])
    run.write_settings()
    return trainer


def _assemble(run: Run, orders: Orders) -> Trainer:
    """Meets the other ranks, if any, and builds the trainer on all of them."""
    world = run.ranks.meet()
    from quintain.assemble import assemble

    orders.send(world, run.run_file)
    trainer = assemble(run.run_file, run, run.writer, world=world)
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


def checkpoint_of(runs_dir: Path, text: str) -> Path:
    """Finds the checkpoint that RUN or RUN@which names."""
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    return CheckpointCatalog(directory.checkpoints).find(which or "latest", lambda text: None).path


def _stored(runs_dir: Path, text: str, allow: Sequence[str]) -> tuple[RunDirectory, RunFile, Checkpoint]:
    """Finds the directory, the settings and the checkpoint that RUN or RUN@which names; without a name the best."""
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    run_file = RunFile.load(directory.config, trusted=False, allow=allow)
    return directory, run_file, _find_or_best(CheckpointCatalog(directory.checkpoints), which)


def _with_pictures(run_file: RunFile) -> RunFile:
    """Asks a Gymnasium environment to draw itself, in this process; others draw if they have a `render`."""
    env: Any = run_file.experiment.env
    run_file = run_file.replace("run.env_workers.num_workers", None)
    if env.type != "gym" or "render_mode" in env.kwargs:
        return run_file
    return run_file.replace("experiment.env.kwargs", {**env.kwargs, "render_mode": "rgb_array"})


def _find_or_best(catalog: CheckpointCatalog, which: str | None) -> Checkpoint:
    if which is not None:
        return catalog.find(which, lambda text: None)
    try:
        return catalog.best()
    except CheckpointNotFound:
        return catalog.latest(lambda text: None)


def _settings_to_resume(
    directory: RunDirectory, overrides: Sequence[str], allow: Sequence[str], run_file: RunFile | None
) -> tuple[RunFile, RunFile]:
    if not directory.config.is_file():
        raise RunDirectoryError(f"nothing to resume in {directory.shown}: it has no config.yaml", code="E0303")
    named = [*allow, *(code_names(run_file.to_dict()) if run_file is not None else ())]
    stored = RunFile.load(directory.config, trusted=False, allow=named)
    if run_file is None:
        return stored, RunFile.load(directory.config, *overrides, trusted=False, allow=named)
    _refuse_other_ranks(stored, run_file, overrides)
    accepted = RunFile.load(directory.config, *overrides, trusted=False, allow=named)
    changes = changed_keys(accepted, run_file)
    if run_file.run.threads != accepted.run.threads:
        changes.append(("run.threads", accepted.run.threads, run_file.run.threads))
    for path, old, new in changes:
        raise SettingsError(
            f"{path} changed {old} -> {new} since this run began, which would change its numbers. Repeat it as "
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


def _require_known_env(run_file: RunFile) -> None:
    """Finds a misspelt Gymnasium id before anything is announced or built."""
    settings = run_file.experiment.env
    if settings.type == "gym" and ":" not in env_name(run_file):
        from quintain.envs.factories import require_registered

        require_registered(env_name(run_file))


def _show_notes(run: Run, run_file: RunFile) -> None:
    for note in run_file.notes:
        run.writer.note(note)


def _report_other_software(run: Run, checkpoint: Path) -> None:
    about, now = load(checkpoint).manifest.about, facts(run.run_file.run.threads)
    for name in ("versions", "cpu_capability", "machine", "threads"):
        if about.get(name) != now[name]:
            run.writer.note(
                f"warning[W0403]: {name} differs from when the checkpoint was made ({about.get(name)} -> {now[name]}); "
                f"results may differ in the last bits"
            )
