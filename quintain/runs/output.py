"""A run's header, writers and suggested commands. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.core import registry
from quintain.core.budget import Budget
from quintain.core.trust import code_names
from quintain.core.versions import facts, quintain_version
from quintain.services.files.run_directory import RunDirectory
from quintain.services.reporting.metrics_file import some_rows
from quintain.services.reporting.queued_writer import QueuedWriter
from quintain.services.reporting.settings import WriterSettings
from quintain.services.reporting.writers import RunHeader, RunSummary, Writer
from quintain.settings.fingerprint import leaves

if TYPE_CHECKING:
    from quintain.settings.tree import RunFile
    from quintain.trainers.loop import Loop

ONLINE_ENV = "quintain.online.envs:online_env"
"""The environment of a configuration module, which is known by its generator."""
_SHOWN_OF_ENV = frozenset({"type", "id", "num_lanes", "group_size", "max_episode_steps", "vectorization"})
_SHOWN_BLOCKS = ("algorithm", "policy", "rollout", "reward_signals", "auxiliary_losses")
_SHOWN_NAMES = ("type", "env.id", "activation", "cell", "shape")


class CommandHints:
    """Suggests next commands to the user."""

    def __init__(self, directory: RunDirectory | None, run_file: RunFile, *, has_objects: bool = False) -> None:
        self.has_objects = has_objects
        self.is_refused = False
        """Whether the run failed by a mistake that a resume would meet again."""
        self.has_policy = run_file.experiment.loop is None
        kwargs = getattr(run_file.experiment.loop, "kwargs", {})
        self.is_experiment = run_file.experiment.env.type == "scenario" or "hyper_params" in kwargs
        self.run_id = None if directory is None else directory.run_id
        how = "Trainer.load(run, env)" if self.has_policy else "quintain.host(..., resume=True)"
        self.continued_by = "run_experiment(..., run_id=...)" if self.is_experiment else how
        """The call that goes on with a run of objects; facades have calls of their own."""
        self.directory, self.run_file = directory, run_file
        default_place = directory is None or directory.shown.parent == Path("runs")
        self.place = "" if default_place or directory is None else f" --runs-dir {directory.shown.parent}"

    def allowed(self) -> str:
        """Returns the options by which commands may load the run's code, once its settings are written."""
        # What this user makes here needs no permission, unless no key can be kept.
        is_own = self.directory is None or self.directory.doubt() is None
        names = () if is_own else dict.fromkeys(name for _, name in code_names(self.run_file.to_dict()))
        return "".join(f" --allow {name}" for name in names)

    def when_spent(self, loop: Loop) -> str:
        """Says that nothing is left to do, and how to train for longer."""
        progress, budget = loop.progress, loop.budget
        is_in_steps = progress.budget.env_steps is not None
        done = f"{progress.env_steps if is_in_steps else progress.updates} of {progress.budget} are done"
        if getattr(loop, "until_returns", False):
            return f"nothing left to do: the training function has returned, {done}"
        # A run may also have ended at its goal, before its budget was spent.
        total = max(budget.env_steps or 0, progress.env_steps) * 2
        ways = [f"train({total})"] if self.has_policy and is_in_steps else []
        if self.has_objects:
            # No command has its objects.
            ways = ways or [f"{self.continued_by} and a larger budget"]
        elif self.run_id is not None:
            key = f"total_timesteps={total}" if is_in_steps else "budget.updates=N"
            ways.append(f"quintain resume {self.run_id}{self.place} {key}")
        return (
            f"nothing left to do: {done}. Budgets count from the first step; train for longer with: {' or '.join(ways)}"
        )

    def after(self, state: str, budget: Budget | None) -> list[tuple[str, str]]:
        """Returns commands with their purpose; without a budget there is none for longer training."""
        if self.run_id is None:
            return []
        run = f"{self.run_id}{self.place}"
        saved = (f"quintain checkpoints list {run}", f"what was saved; {self.continued_by} goes on from there")
        if self.has_objects:
            return [saved]
        allowed = self.allowed()
        if state != "finished":
            purpose = "once the mistake is mended" if self.is_refused else "continue where it stopped"
            return [(f"quintain resume {run}{allowed}", purpose)]
        longer = f"quintain resume {run}{allowed} {longer_by(budget)}"
        play = f"quintain eval {run}{allowed} --episodes 100"
        return [
            *([(play, "play episodes with the result")] if self.has_policy else []),
            *([] if budget is None else [(longer, "train for longer")]),
            (f"quintain checkpoints list {run}", "what was saved"),
        ]


def longer_by(budget: Budget | None) -> str:
    """Returns the override that triples a budget."""
    if budget is None or budget.env_steps is not None:
        return f"total_timesteps={3 * (0 if budget is None else budget.env_steps or 0)}"
    return f"budget.updates={3 * (budget.updates or 0)}"


def make_writers(run_file: RunFile, stream: Any = None, *, quiet: bool = False) -> list[Writer]:
    """Makes the writers of the settings; the console's stream may be redirected, or the console left out."""
    writers: list[Writer] = []
    for settings in run_file.run.writers:
        if quiet and settings.type == "console":
            continue
        make = registry.get("writer", settings.type).load()
        takes_stream = settings.type == "console" and stream is not None
        writer: Writer = make(settings, stream) if takes_stream else make(settings)
        in_background = isinstance(settings, WriterSettings) and settings.in_background
        writers.append(QueuedWriter(writer, settings.type) if in_background else writer)
    return writers


def needs_directory(run_file: RunFile) -> bool:
    """Whether a writer of the settings writes files, which two runs must not share."""
    return any(isinstance(each, WriterSettings) and each.in_directory for each in run_file.run.writers)


def hyper_parameters(run_file: RunFile) -> dict[str, bool | int | float | str]:
    """Returns the settings that describe the training and may be published: scalars, and the names of parts.

    An allow-list, not a list of secrets: free text and arguments of environments are left out.
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


def whole_budget(run_file: RunFile) -> Budget:
    """Returns the budget of the run: the sum of those of its behaviours."""
    budget, behaviors = run_file.budget, run_file.experiment.behaviors.values()
    if not behaviors:
        return budget
    own = [getattr(behavior.rollout, "budget_env_steps", None) or budget.env_steps for behavior in behaviors]
    env_steps = sum(each for each in own if each is not None)
    return Budget(env_steps or None, None if budget.updates is None else budget.updates * len(own))


def header_of(run_file: RunFile, directory: RunDirectory | None, done: tuple[int, int], budget: Budget) -> RunHeader:
    """Describes a run that has done so many environment steps and updates."""
    experiment = run_file.experiment
    return RunHeader(
        version=quintain_version(),
        algorithm=run_file.trained,
        env=env_name(run_file),
        num_lanes=experiment.env.num_lanes,  # type: ignore[attr-defined]  # every env has lanes
        device=run_file.run.device,
        cores=run_file.run.threads,
        seed=experiment.seed,
        run_directory=None if directory is None else str(directory.path),
        shown_directory=None if directory is None else str(directory.shown),
        budget_env_steps=budget.env_steps,
        start_step=done[0],
        budget_updates=budget.updates,
        start_updates=done[1],
        num_ranks=getattr(run_file.run.placement, "num_ranks", 1),
        hyper_parameters=hyper_parameters(run_file),
        forked_from=origin_of(run_file),
        behaviors=tuple(experiment.behaviors) if len(experiment.behaviors) > 1 else (),
        history=some_rows(directory.metrics, done[0]) if directory is not None and done[0] else (),
    )


def origin_of(run_file: RunFile) -> str | None:
    """Returns the run and checkpoint that a fork started with, without the digest; None if it is no fork."""
    named = run_file.experiment.initialize_from
    return None if named is None else named.partition("#")[0]


def summary_of(
    loop: Loop, state: str, last_checkpoint: str | None, num_faults: int, commands: CommandHints
) -> RunSummary:
    """Describes how a run ended."""
    records = loop.records
    return RunSummary(
        state=state,  # type: ignore[arg-type]  # one of the three once training ended
        seconds=loop.stats.total_seconds,
        env_steps=loop.progress.env_steps,
        updates=loop.progress.updates if loop.budget.env_steps is None else None,
        best_eval=records.best_return,
        best_step=records.best_step if records.best_return is not None else None,
        num_eval_episodes=records.num_eval_episodes,
        last_checkpoint=last_checkpoint,
        is_mid_update=bool(last_checkpoint)
        and state == "stopped"
        and loop.progress.stage > 0
        and not loop.counts_cycles,
        num_faults=num_faults,
        next_commands=commands.after(state, None if records.goal_reached else loop.budget),
    )


def checkpoint_facts(run_file: RunFile, loop: Loop, exactness: str) -> dict[str, Any]:
    """Returns the facts for a checkpoint's manifest: experiment, versions and machine."""
    return {
        "fingerprint": run_file.fingerprint(),
        "settings": run_file.to_dict(),
        "forked_from": run_file.experiment.initialize_from,
        "exactness": exactness,
        "updates": loop.progress.updates,
        **loop.facts(),
        "world_size": loop.world.size,
        **facts(run_file.run.threads),
    }


def env_name(run_file: RunFile) -> str:
    """Returns the name of the environment, as `train` takes it; of a configuration module that of its generator."""
    settings = run_file.experiment.env
    name = dict(settings).get("id")
    if name is None:
        return settings.type
    if name == ONLINE_ENV:
        name = dict(settings)["kwargs"].get("generator", name)
    return str(name) if settings.type == "gym" else f"{settings.type}/{name}"
