"""Configuration modules of MineStudio on the command line (`online_dict`, `env_generator`, `policy_generator`)."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path

from quintain.cli.requests import DEFAULT_RUNS_DIR, TrainRequest, usage_error
from quintain.errors import SettingsError
from quintain.placements.settings import RaySettings
from quintain.settings.tree import RunFile

BARE_RAY = frozenset({"placement=ray", "run.placement=ray"})


def is_module(path: Path) -> bool:
    return path.suffix == ".py"


def load_file(path: Path, *overrides: str) -> RunFile:
    """Reads a run file, or translates a configuration module into one."""
    if not is_module(path):
        return RunFile.load(path, *overrides)
    # Only for modules: most runs have nothing to do with online trainers.
    file_settings = import_module("quintain.online.start").file_settings
    try:
        settings, notes = file_settings(path)
        run_file = RunFile.from_mapping(settings, *overrides, origin=str(path), notes=notes)
        if isinstance(run_file.run.placement, RaySettings):
            # Some keys have an effect on Ray only. The bare name would put the placement's defaults in their place.
            settings, notes = file_settings(path, on_ray=True)
            more = [each for each in overrides if each.lower().replace(" ", "") not in BARE_RAY]
            run_file = RunFile.from_mapping(settings, *more, origin=str(path), notes=notes)
        return run_file
    except SettingsError as error:
        if error.code == "E0203" and overrides:
            advice = f"help: keys of online_dict are changed in {path}; quintain config show {path} names the settings"
            error.notes = (*error.notes, advice)
        raise


def with_run_of_module(request: TrainRequest, path: Path) -> TrainRequest:
    """Adds to a request what the module's train_config says of its run: save_path, resume and resume_optimizer."""
    runner = import_module("quintain.online.runner")
    train = import_module("quintain.online.start").module_config(path).train_config
    runs_dir = request.runs_dir
    if train.save_path is not None and runs_dir == DEFAULT_RUNS_DIR:
        runs_dir = Path(train.save_path)
    if train.resume is None:
        return replace(request, runs_dir=runs_dir)
    continued = runner.run_to_continue(train, runs_dir)
    _refuse_two_answers(request, path, is_new=continued is None)
    if continued is None:
        return replace(request, runs_dir=runs_dir, initialize_from=str(runner.initial_weights(train, runs_dir)))
    folder, run = continued
    settings, _ = import_module("quintain.online.start").file_settings(path)
    changes = (*runner.changes_on_resume(settings), *request.overrides)
    return replace(request, runs_dir=folder, run_id=run, is_resume=True, overrides=changes)


def _refuse_two_answers(request: TrainRequest, path: Path, *, is_new: bool) -> None:
    given = {
        "--resume": request.is_resume,
        "--initialize-from": request.initialize_from is not None,
        "--run-id": request.run_id is not None and not is_new,
        "--force": request.is_forced and not is_new,
    }
    for option in (name for name, is_given in given.items() if is_given):
        does = "begins with the weights of" if is_new else "continues"
        raise usage_error(f"train_config.resume in {path} {does} a run, which {option} contradicts. Leave one out")
