"""Results of stored runs: evaluations of a checkpoint's policies, and exported policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.core.trust import ending_limits, limit_imports
from quintain.data.saved_spec import require_same_specs
from quintain.envs.agents.factory import agent_env
from quintain.envs.gym.factories import with_pictures
from quintain.envs.settings import AgentsSettings, GymSettings
from quintain.errors import CheckpointNotFound, SettingsError
from quintain.policies.export import export_onnx
from quintain.rollouts.evaluate import Evaluator
from quintain.runs.env_maker import env_maker
from quintain.runs.infer import episode_limit, policy_for
from quintain.runs.parts import resolve_device
from quintain.runs.restore import (
    policies_of,
    restore_part,
    stored_settings,
)
from quintain.services.checkpoints.catalog import Checkpoint, CheckpointCatalog, load
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import file_name, resolve_run, split_checkpoint_suffix
from quintain.services.reporting.video import EpisodeRecorder, require_pillow, save_webp
from quintain.settings.agent_rules import has_agents
from quintain.settings.tree import RunFile
from quintain.trainers.curriculum import Curriculum
from quintain.trainers.events import MAX_EVAL_LANES

if TYPE_CHECKING:
    from quintain.policies.export import Exported
    from quintain.rollouts.evaluate import EpisodeResults
    from quintain.typing import TrainingEnv


class Evaluation(NamedTuple):
    """Evaluation of a checkpoint's policies."""

    results: dict[str, EpisodeResults]
    """By behaviour."""
    checkpoint: Path
    video: str | None
    has_agents: bool


@ending_limits()
def evaluate(
    runs_dir: Path,
    text: str,
    *,
    num_episodes: int,
    deterministic: bool,
    seed: int | None,
    allow: Sequence[str] = (),
    has_video: bool = False,
    max_episode_steps: int | None = None,
    tell: Callable[[str], None] | None = None,
) -> Evaluation:
    """Evaluates a run's best policies, or those of the checkpoint RUN@..., over episodes of each behaviour.

    Episodes are truncated after `max_episode_steps`: 0 for never, None for the limit of the run's own evaluation.
    `tell` gets a line now and then while it takes long. A video shows the first lane, or the first copy of the
    environment.
    """
    directory, run_file, checkpoint = stored_run(runs_dir, text, allow)
    with_agents = has_agents(run_file.experiment)
    if has_video:
        require_pillow()
        run_file = run_file if with_agents else _with_pictures(run_file)
    recorder = EpisodeRecorder() if has_video else None
    torch.set_num_threads(run_file.run.threads)
    rng = Rng(run_file.experiment.seed if seed is None else seed).child("eval_command")
    loaded = load(checkpoint.path)
    settings: Any = run_file.experiment.env
    curriculum = Curriculum(settings.curricula if isinstance(settings, AgentsSettings) else {})
    if isinstance(settings, AgentsSettings):
        env: TrainingEnv = agent_env(settings, rng.child("env"))
        specs = env.specs
    else:
        env = env_maker(run_file)(min(num_episodes, MAX_EVAL_LANES), rng.child("env"))
        specs = dict.fromkeys(run_file.experiment.behaviors, env.spec)
    with closing(env):
        require_same_specs(specs, loaded.manifest.about)
        policies = policies_of(loaded, partial(policy_for, run_file))
        for policy in policies.values():
            accelerate(policy.to(resolve_device(run_file.run.device)))
        if curriculum.lessons:
            restore_part(curriculum, loaded, "curriculum")
        evaluator = Evaluator(
            env,
            num_episodes,
            rng,
            on_nonfinite=settings.on_nonfinite,
            max_episode_steps=episode_limit(run_file) if max_episode_steps is None else max_episode_steps or None,
            prepare=curriculum.apply if with_agents else None,
        )
        results = evaluator.play(
            policies, deterministic=deterministic, should_stop=lambda: False, on_step=recorder, tell=tell
        )
    assert results is not None
    video = None
    if recorder is not None:
        path = directory.folder("videos") / f"{checkpoint.name}.webp"
        save_webp(path, recorder.frames, recorder.frames_per_second)
        video = directory.show(path)
    return Evaluation(results, checkpoint.path, video, with_agents)


@ending_limits()
def export(
    runs_dir: Path, text: str, *, out: Path | None = None, allow: Sequence[str] = ()
) -> tuple[dict[str, Exported], Path]:
    """Exports a run's best policies, or those of the checkpoint RUN@..., to ONNX; returns which checkpoint it was.

    Policies of agents get one folder per behaviour. Needs no environment: the checkpoint contains the spaces.
    """
    directory, run_file, checkpoint = stored_run(runs_dir, text, allow)
    torch.set_num_threads(run_file.run.threads)
    policies = policies_of(load(checkpoint.path), partial(policy_for, run_file))
    folder = out or Path(directory.show(directory.folder("export")))
    about = {
        "run": directory.run_id,
        "checkpoint": checkpoint.name,
        "step": checkpoint.step,
        "digest": checkpoint.digest,
    }
    if not has_agents(run_file.experiment):
        [policy] = policies.values()
        return {"": export_onnx(policy, folder, about)}, checkpoint.path
    written = {
        name: export_onnx(policy, folder / file_name(name), {**about, "behavior": name})
        for name, policy in policies.items()
    }
    return written, checkpoint.path


def stored_run(runs_dir: Path, text: str, allow: Sequence[str]) -> tuple[RunDirectory, RunFile, Checkpoint]:
    """Finds the directory, the settings and the checkpoint of RUN, RUN@which or a path; without a name the best.

    From here on only code is imported that a run of this origin may import; the caller ends this.
    """
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    run_file = stored_settings(directory, allow=allow)
    if run_file.experiment.loop is not None:
        raise SettingsError(
            f"run {directory.run_id} trains {run_file.trained}, a loop of its own, which has no policy to act with; "
            f"evaluate within that loop's code, or have it hosted by a trainer (trainer.type=hosted), which has one"
        )
    limit_imports(run_file.permitted)
    return directory, run_file, _find_or_best(CheckpointCatalog(directory.checkpoints), which)


def _with_pictures(run_file: RunFile) -> RunFile:
    """Sets the render mode of a Gymnasium environment, in this process; others render if they have a `render`."""
    env: Any = run_file.experiment.env
    run_file = run_file.replace("run.env_workers.num_workers", None)
    if not isinstance(env, GymSettings):
        return run_file
    return run_file.replace("experiment.env.kwargs", with_pictures(env).kwargs)


def _find_or_best(catalog: CheckpointCatalog, which: str | None) -> Checkpoint:
    if which is not None:
        return catalog.find(which, lambda text: None)
    try:
        return catalog.best()
    except CheckpointNotFound:
        return catalog.latest(lambda text: None)
