"""Results of stored runs: episodes played by a checkpoint's policy, and policies exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.core.trust import ending_limits, limit_imports
from quintain.data.saved_spec import LANES, require_same_specs
from quintain.errors import CheckpointNotFound, SettingsError
from quintain.policies.export import export_onnx
from quintain.rollouts.evaluate import Evaluator
from quintain.runs.acting import env_maker
from quintain.runs.infer import episode_limit, play_agents, policy_for
from quintain.runs.parts import make_policy, resolve_device
from quintain.runs.restore import (
    policies_of,
    restore_policy,
    stored_settings,
)
from quintain.services.checkpoints.catalog import Checkpoint, CheckpointCatalog, Loaded, load
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import file_name, resolve_run, split_checkpoint_suffix
from quintain.services.reporting.video import EpisodeRecorder, require_pillow, save_webp
from quintain.settings.agent_rules import has_agents
from quintain.settings.tree import RunFile
from quintain.trainers.events import MAX_EVAL_LANES

if TYPE_CHECKING:
    from quintain.policies.export import Exported
    from quintain.rollouts.evaluate import EpisodeResults


class Evaluation(NamedTuple):
    """Episodes that a checkpoint's policies played."""

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
    """Plays episodes of each behaviour with a run's best policies, or with those of the checkpoint named as RUN@...

    Episodes are cut after `max_episode_steps`: 0 for never, None for as many as in the run's own evaluation. `tell`
    gets a line now and then while it takes long. A video shows the first lane, or the first copy of the environment.
    """
    directory, run_file, checkpoint = _stored(runs_dir, text, allow)
    with_agents = has_agents(run_file.experiment)
    if has_video:
        require_pillow()
        run_file = run_file if with_agents else _with_pictures(run_file)
    recorder = EpisodeRecorder() if has_video else None
    torch.set_num_threads(run_file.run.threads)
    play = play_agents if with_agents else _play_lanes
    results = play(
        run_file,
        load(checkpoint.path),
        Rng(run_file.experiment.seed if seed is None else seed).child("eval_command"),
        num_episodes=num_episodes,
        deterministic=deterministic,
        limit=episode_limit(run_file) if max_episode_steps is None else max_episode_steps or None,
        on_step=recorder,
        tell=tell,
    )
    video = None
    if recorder is not None:
        path = directory.folder("videos") / f"{checkpoint.name}.webp"
        save_webp(path, recorder.frames, recorder.frames_per_second)
        video = directory.show(path)
    return Evaluation(results, checkpoint.path, video, with_agents)


def _play_lanes(
    run_file: RunFile,
    loaded: Loaded,
    rng: Rng,
    *,
    num_episodes: int,
    deterministic: bool,
    limit: int | None,
    on_step: EpisodeRecorder | None,
    tell: Callable[[str], None] | None,
) -> dict[str, EpisodeResults]:
    settings: Any = run_file.experiment.env
    env = env_maker(run_file)(min(num_episodes, MAX_EVAL_LANES), rng.child("env"))
    try:
        policy = make_policy(run_file, env.spec)
        require_same_specs({LANES: env.spec}, loaded.manifest.about)
        restore_policy(policy, loaded)
        accelerate(policy.to(resolve_device(run_file.run.device)))
        evaluator = Evaluator(env, num_episodes, rng, on_nonfinite=settings.on_nonfinite, max_episode_steps=limit)
        played = evaluator.play(
            policy, deterministic=deterministic, should_stop=lambda: False, on_step=on_step, tell=tell
        )
    finally:
        env.close()
    assert played is not None
    return {next(iter(run_file.experiment.behaviors)): played}


@ending_limits()
def export(
    runs_dir: Path, text: str, *, out: Path | None = None, allow: Sequence[str] = ()
) -> tuple[dict[str, Exported], Path]:
    """Writes a run's best policies, or those of the checkpoint named as RUN@..., as ONNX; says which it was.

    Policies of agents get a folder each, by behaviour. Needs no environment: the checkpoint says for which spaces the
    policies are.
    """
    directory, run_file, checkpoint = _stored(runs_dir, text, allow)
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


def _stored(runs_dir: Path, text: str, allow: Sequence[str]) -> tuple[RunDirectory, RunFile, Checkpoint]:
    """Finds the directory, the settings and the checkpoint that RUN or RUN@which names; without a name the best.

    From here on only code is imported that a run of this origin may import; the caller ends this.
    """
    name, which = split_checkpoint_suffix(text)
    directory = RunDirectory.open_existing(resolve_run(runs_dir, name))
    run_file = stored_settings(directory, allow=allow)
    if run_file.experiment.loop is not None:
        raise SettingsError(f"run {directory.run_id} trains {run_file.trained}, which has no policy to act with")
    limit_imports(run_file.permitted)
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
