"""`quintain train config.yaml --env module:Env`: ML-Agents' trainer configurations, with its options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import typer

from quintain.behaviors.translate import CommandLine, Request, translate
from quintain.behaviors.yaml_import import check_configuration, env_path_of, is_mlagents_file
from quintain.cli.requests import DEFAULT_RUNS_DIR, TrainRequest, usage_error
from quintain.cli.training import output, train_launched
from quintain.runs import launch
from quintain.services.files.run_names import resolve_run
from quintain.settings.yaml_text import read_file

SEED = "experiment.seed="
"""The override that --seed becomes."""


def is_mlagents_source(path: Path) -> bool:
    return is_mlagents_file(read_file(path))


def run_configuration(request: TrainRequest, path: Path) -> None:
    """Starts or resumes the run of a configuration, or only runs inference."""
    document = read_file(path)
    configuration = check_configuration(document, request.agents.env or env_path_of(document))
    _refuse_overrides(request)
    typed = CommandLine(
        env=request.agents.env,
        num_envs=request.agents.num_envs,
        seed=_typed_seed(request),
        run_id=request.run_id,
        initialize_from=request.initialize_from,
        is_resume=request.is_resume,
        is_forced=request.is_forced,
        is_inference=request.agents.is_inference,
        is_deterministic=request.agents.is_deterministic,
        results_dir=None if request.runs_dir == DEFAULT_RUNS_DIR else str(request.runs_dir),
    )
    kept = configuration.options.checkpoint_settings
    runs_dir = Path(typed.results_dir or kept.results_dir or DEFAULT_RUNS_DIR)
    run_id = typed.run_id or kept.run_id
    needs_earlier = typed.is_resume or typed.is_inference or kept.resume or kept.load_model or kept.inference
    if needs_earlier and typed.seed is None and run_id is not None:
        # A seed that was drawn is the run's own from then on.
        typed = replace(typed, seed=_stored_seed(runs_dir, run_id))
    asked = translate(configuration, typed)
    if asked.is_inference:
        _infer(asked, runs_dir, request)
        return
    if asked.is_deterministic:
        raise usage_error("--deterministic goes with --inference: a policy that never tries anything cannot learn")
    _train(asked, runs_dir, request)


def _train(asked: Request, runs_dir: Path, request: TrainRequest) -> None:
    if asked.is_resume:
        if asked.run_id is None:
            raise usage_error("--resume needs --run-id")
        launched = launch.resume(
            runs_dir,
            asked.run_id,
            _budgets(asked),
            allow=request.allow,
            run_file=asked.run_file,
            **output(request.is_json, request.is_quiet),
        )
    else:
        start_from = asked.initialize_from
        launched = launch.start(
            asked.run_file,
            runs_dir=runs_dir,
            run_id=asked.run_id,
            force=asked.is_forced,
            initialize_from=None if start_from is None else launch.checkpoint_of(runs_dir, start_from),
            **output(request.is_json, request.is_quiet),
        )
    for note in asked.notes:
        launched.run.writer.note(note)
    train_launched(launched, request)


def _infer(asked: Request, runs_dir: Path, request: TrainRequest) -> None:
    from quintain.runs.infer import infer

    chosen = asked.run_id or asked.initialize_from
    if chosen is None:
        raise usage_error("--inference needs the policies of a run: name it with --run-id")
    exit_code = infer(
        asked.run_file,
        launch.checkpoint_of(runs_dir, chosen),
        is_deterministic=asked.is_deterministic,
        **output(request.is_json, request.is_quiet),
    )
    if exit_code:
        raise typer.Exit(exit_code)


def _budgets(asked: Request) -> list[str]:
    """Returns the budgets as overrides, which a resumed run may change, like ML-Agents' max_steps."""
    experiment = asked.run_file.experiment
    budgets = {name: getattr(each.rollout, "budget_env_steps", None) for name, each in experiment.behaviors.items()}
    own = [
        f"experiment.behaviors.{name}.rollout.budget_env_steps={'null' if budget is None else budget}"
        for name, budget in budgets.items()
    ]
    return [f"experiment.budget.env_steps={experiment.budget.env_steps}", *own]


def _typed_seed(request: TrainRequest) -> int | None:
    return next((int(text.removeprefix(SEED)) for text in request.overrides if _is_seed(text)), None)


def _is_seed(text: str) -> bool:
    return text.startswith(SEED) and text.removeprefix(SEED).isdigit()


def _refuse_overrides(request: TrainRequest) -> None:
    typed = [text for text in request.overrides if not _is_seed(text)]
    if typed:
        raise usage_error(f"{typed[0]}: a configuration of ML-Agents is changed in its file, or by options")


def _stored_seed(runs_dir: Path, run_id: str) -> int | None:
    config = resolve_run(runs_dir, run_id) / "config.yaml"
    if not config.is_file():
        return None
    stored = read_file(config).value
    seed = stored.get("experiment", {}).get("seed")
    return seed if isinstance(seed, int) else None
