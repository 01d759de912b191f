"""What a run says about itself: its header, its writers and the commands to try next. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain import registry
from quintain.services.queued_writer import QueuedWriter
from quintain.services.run_directory import RunDirectory
from quintain.services.writers import RunHeader, Writer
from quintain.settings.fingerprint import leaves
from quintain.versions import facts, quintain_version

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile

_SHOWN_OF_ENV = frozenset({"type", "id", "num_lanes", "group_size", "max_episode_steps", "vectorization"})
_SHOWN_BLOCKS = ("algorithm", "policy", "rollout", "reward_signals")
_SHOWN_NAMES = ("type", "env.id", "activation", "cell", "shape")


class CommandHints:
    """Names the commands a user may want next; only ones that exist."""

    def __init__(self, directory: RunDirectory | None, run_file: RunFile, *, has_objects: bool = False) -> None:
        self.has_objects = has_objects
        self.run_id = None if directory is None else directory.run_id
        self.allowed = "".join(f" --allow {name}" for name in code_names(run_file.to_dict()))
        default_place = directory is None or directory.shown.parent == Path("runs")
        self.place = "" if default_place or directory is None else f" --runs-dir {directory.shown.parent}"

    def after(self, state: str, budget: int | None) -> list[tuple[str, str]]:
        """Returns commands and what they are for; without a budget there is nothing to train for longer."""
        if self.run_id is None:
            return []
        run = f"{self.run_id}{self.place}"
        saved = (f"quintain checkpoints list {run}", "what was saved; trainer.load_checkpoint goes on from one")
        if self.has_objects:
            return [saved]
        if state != "finished":
            return [(f"quintain resume {run}{self.allowed}", "continue where it stopped")]
        longer = f"quintain resume {run}{self.allowed} total_timesteps={3 * (budget or 0)}"
        return [
            (f"quintain eval {run}{self.allowed} --episodes 100", "play episodes with the result"),
            *([] if budget is None else [(longer, "train for longer")]),
            (f"quintain checkpoints list {run}", "what was saved"),
        ]


def make_writers(run_file: RunFile, stream: Any = None) -> list[Writer]:
    """Makes the writers that the settings name; the console's stream may be redirected."""
    writers: list[Writer] = []
    for settings in run_file.run.writers:
        make = registry.get("writer", settings.type).load()
        takes_stream = settings.type == "console" and stream is not None
        writer: Writer = make(settings, stream) if takes_stream else make(settings)
        in_background = getattr(type(settings), "in_background", False)
        writers.append(QueuedWriter(writer, settings.type) if in_background else writer)
    return writers


def hyper_parameters(run_file: RunFile) -> dict[str, bool | int | float | str]:
    """Returns what describes the training and may be shown to anyone: numbers, and the names of parts.

    A list of what is allowed, not of what is secret: free text and what is passed on to an environment stay here.
    """
    experiment = run_file.experiment.model_dump(mode="json")
    behaviors = {
        name: {block: behavior[block] for block in _SHOWN_BLOCKS} for name, behavior in experiment["behaviors"].items()
    }
    shown = {
        "seed": experiment["seed"],
        "budget": experiment["budget"],
        "env": {name: value for name, value in experiment["env"].items() if name in _SHOWN_OF_ENV},
        # Where there is only one, its name says nothing.
        **(next(iter(behaviors.values())) if len(behaviors) == 1 else behaviors),
    }
    return {
        path: value
        for path, value in leaves(shown)
        if isinstance(value, bool | int | float) or (isinstance(value, str) and path.endswith(_SHOWN_NAMES))
    }


def header_of(run_file: RunFile, directory: RunDirectory | None, start_step: int, budget_env_steps: int) -> RunHeader:
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
        shown_directory=None if directory is None else str(directory.shown),
        budget_env_steps=budget_env_steps,
        start_step=start_step,
        num_ranks=getattr(run_file.run.placement, "num_ranks", 1),
        hyper_parameters=hyper_parameters(run_file),
    )


def checkpoint_facts(run_file: RunFile, trainer: Any, exactness: str) -> dict[str, Any]:
    """Says of a checkpoint what it was made for, with and on."""
    return {
        "fingerprint": run_file.fingerprint(),
        "settings": run_file.to_dict(),
        "spec": trainer.policy.spec.to_dict(),
        "exactness": exactness,
        "device": str(trainer.policy.device),
        "paths": trainer.paths,
        "world_size": trainer.world.size,
        **facts(run_file.run.threads),
    }


def env_name(run_file: RunFile) -> str:
    """Returns what to call the environment: the one word that `train` takes for it."""
    settings = run_file.experiment.env
    name = getattr(settings, "id", None)
    if name is None:
        return settings.type
    return str(name) if settings.type == "gym" else f"{settings.type}/{name}"


def code_names(value: Any) -> list[str]:
    """Lists the module:Name strings of settings that the user named on the command line, which are trusted."""
    if isinstance(value, dict):
        return [name for item in value.values() for name in code_names(item)]
    if isinstance(value, list | tuple):
        return [name for item in value for name in code_names(item)]
    return [value] if isinstance(value, str) and ":" in value else []
