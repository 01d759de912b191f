"""Translates EmbodiChain's constructor to settings: `Trainer(policy, env, algorithm, buffer_size, ...)`.

A parameter becomes a setting or a slot, or is reported once as having no effect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.typing import Keyword, Keywords

PARAMETERS = (
    "buffer_size", "batch_size", "writer", "eval_freq", "save_freq", "checkpoint_dir", "exp_name", "use_wandb",
    "eval_env", "event_cfg", "eval_event_cfg", "num_eval_episodes", "distributed", "rank", "world_size", "eval_seed",
    "best_eval_metric", "best_eval_mode",
)  # fmt: skip
"""Parameters that may follow `Trainer(policy, env, algorithm)`, in order or by name."""

METRICS = {"eval/avg_reward": "eval/mean_reward", "eval/avg_length": "eval/mean_ep_length"}
"""EmbodiChain's names of metrics that have other names here."""

_EVENTS = "experiment.behaviors.default.events"
_SETTINGS = ("buffer_size", "batch_size")


@dataclass
class Translation:
    """A call's parameters beyond its slots: settings, and all that are no settings."""

    settings: Keywords
    given: Keywords = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def runs_dir(self) -> Path:
        return Path(self.given.get("runs_dir") or self.given.get("checkpoint_dir") or "runs")

    @property
    def is_kept(self) -> bool:
        """Whether the run has a directory from its start."""
        return any(self.given.get(name) for name in ("checkpoint_dir", "save_freq", "run_id", "runs_dir"))

    def place(self, run_id: str | None, runs_dir: str | Path | None) -> None:
        """Notes the name of the run and the folder of its directory."""
        if runs_dir is not None and "checkpoint_dir" in self.given:
            raise TypeError("Trainer got runs_dir and checkpoint_dir, which are the same; keep runs_dir")
        self.given |= {"run_id": run_id, "runs_dir": runs_dir}
        if run_id is not None:
            self.settings["run.id"] = run_id


def translate(more: Sequence[Keyword], keywords: Mapping[str, Keyword]) -> Translation:
    """Sorts the parameters after the three slots into settings and EmbodiChain's other parameters."""
    if len(more) > len(PARAMETERS):
        raise TypeError(f"Trainer takes at most {3 + len(PARAMETERS)} positional arguments")
    named = dict(zip(PARAMETERS, more, strict=False))
    if twice := named.keys() & keywords.keys():
        raise TypeError(f"Trainer got {', '.join(sorted(twice))} twice, by position and by name")
    named |= keywords
    given = {name: named.pop(name) for name in PARAMETERS if name in named and name not in _SETTINGS}
    settings = {name: value for name, value in named.items() if name not in _SETTINGS or value is not None}
    return Translation(settings, {name: value for name, value in given.items() if value is not None})


def apply(run_file: RunFile, translation: Translation) -> RunFile:
    """Returns the run file with the other parameters applied; parameters without effect are noted."""
    given = translation.given
    if "save_freq" in given:
        run_file = run_file.replace("run.checkpoint.every_env_steps", given["save_freq"] or None)
        run_file = run_file.replace("run.checkpoint.every_seconds", None)
    if "exp_name" in given and (translation.is_kept or run_file.run.id is None):
        run_file = run_file.replace("run.id", _free_name(translation.runs_dir, str(given["exp_name"])))
    run_file = _with_evaluation(run_file, translation)
    _note_short_intervals(run_file, translation)
    if given.get("use_wandb"):
        run_file = run_file.replace("run.writers", [*run_file.run.writers, {"type": "wandb"}])
    if given.get("distributed") or given.get("world_size", 1) != 1:
        translation.notes.append("note: distributed, rank and world_size have no effect; a launcher sets them")
    return run_file


def _with_evaluation(run_file: RunFile, translation: Translation) -> RunFile:
    given = translation.given
    changes: Keywords = {
        ours: given[theirs]
        for theirs, ours in (
            ("num_eval_episodes", "num_episodes"),
            ("eval_seed", "seed"),
            ("best_eval_mode", "best_mode"),
        )
        if theirs in given
    }
    if "best_eval_metric" in given:
        changes["best_metric"] = METRICS.get(given["best_eval_metric"], given["best_eval_metric"])
    events = list(next(iter(run_file.experiment.behaviors.values())).events)
    if given.get("eval_freq", 1) == 0:
        return run_file.replace(_EVENTS, [event for event in events if event.type != "evaluate"])
    if "eval_freq" in given:
        changes |= {"every_env_steps": given["eval_freq"], "every_updates": None}
    if not changes:
        return run_file
    found = [event for event in events if event.type == "evaluate"]
    evaluate = {**(found[0].model_dump(exclude_unset=True) if found else {}), "type": "evaluate", **changes}
    rest = [event for event in events if event not in found[:1]]
    return run_file.replace(_EVENTS, [evaluate, *rest])


def _note_short_intervals(run_file: RunFile, translation: Translation) -> None:
    """Notes how an interval below one update is rounded; the unit is environment steps, which the names do not tell."""
    behavior: Any = next(iter(run_file.experiment.behaviors.values()))
    env: Any = run_file.experiment.env
    per_update = env.num_lanes * behavior.rollout.num_steps
    for name in ("eval_freq", "save_freq"):
        interval = translation.given.get(name)
        if interval and interval < per_update:
            translation.notes.append(
                f"note: {name} {interval} is in environment steps and less than one update has ({per_update}), so it "
                f"happens after every update"
            )


def _free_name(runs_dir: Path, name: str) -> str:
    number, free = 1, name
    while (runs_dir / free).exists():
        number += 1
        free = f"{name}-{number}"
    return free
