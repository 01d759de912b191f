"""Parameters and agents' weights from runs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from quintain.core.state import as_tensors
from quintain.data.saved_spec import LANES
from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.experiments.agents_parameters import AgentParameters
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.parameters_base import BaseHyperParameters, SubParameters, to_plain
from quintain.experiments.trainer_parameters import BaseRunPreserve
from quintain.policies.team import TeamPolicy
from quintain.runs.launch import checkpoint_of
from quintain.runs.restore import stored_settings
from quintain.services.checkpoints.catalog import load
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import resolve_run
from quintain.settings.fingerprint import leaves
from quintain.typing import JsonObject, State

MAY_GROW = ("rl.num_iterations", "solo_agent.num_epochs")
"""Hyper-parameters that may be larger where a run goes on: it then trains for longer."""


def hyper_params_of(runs_dir: Path, run_id: str) -> HyperParameters:
    """Returns the hyper-parameters of a run of an experiment."""
    directory = RunDirectory.open_existing(resolve_run(runs_dir, run_id))
    return HyperParameters.from_dict(_stored(directory))


def _stored(directory: RunDirectory) -> JsonObject:
    experiment = stored_settings(directory).experiment
    holders = (experiment.env, experiment.loop)
    found = next((each for each in (getattr(holder, "hyper_params", None) for holder in holders) if each), None)
    found = found or getattr(experiment.loop, "kwargs", {}).get("hyper_params")
    if not isinstance(found, Mapping):
        raise SettingsError(f"{directory.shown} is no run of an experiment: it has no hyper-parameters", code="E0276")
    return dict(found)


def stored_parameters(hyper_params: HyperParameters, directory: RunDirectory) -> tuple[JsonObject, dict[str, int]]:
    """Returns the hyper-parameters with which a run goes on, as it has them stored, and those that are larger now.

    Any other difference is refused; one of versions is none.
    """
    found = _stored(directory)
    before = dict(leaves(HyperParameters.from_dict(found).to_dict()))
    now = dict(leaves(hyper_params.to_dict()))
    grown: dict[str, int] = {}
    for address in {**before, **now}:
        old, new = before.get(address), now.get(address)
        if address in MAY_GROW and isinstance(old, int) and isinstance(new, int) and new > old:
            grown[address] = new
            group, name = address.split(".")
            found[group] = {**(found.get(group) or {}), name: new}
        elif old != new:
            raise SettingsError(
                f"{address} is {new!r}, and was {old!r} when {directory.shown} began. Only {' and '.join(MAY_GROW)} "
                "may be changed, to a larger value; take another run_id, or do_not_load_checkpoint=True to begin anew",
                code="E0207",
            )
    return found, grown


def with_base_run(hyper_params: HyperParameters, runs_dir: Path) -> HyperParameters:
    """Returns the hyper-parameters of the base run; `base_run` and fields marked by `BaseRunPreserve` stay."""
    base = hyper_params.get("base_run")
    if base.base_run_type == "none":
        return hyper_params
    values = _with_marked(hyper_params_of(runs_dir, base.run_id), hyper_params, base.base_run_type)
    return HyperParameters.from_dict({**values, "base_run": base})


def _with_marked(base: BaseHyperParameters, own: BaseHyperParameters, kind: str) -> JsonObject:
    """Returns the values of a base run, except those of fields that keep their own with a base run of this kind."""
    values = base.to_dict()
    for name, annotation in type(own).annotations_of().items():
        mine, theirs = getattr(own, name), getattr(base, name)
        if BaseRunPreserve(kind) in getattr(annotation, "__metadata__", ()):
            values[name] = to_plain(mine)
        elif isinstance(mine, SubParameters) and type(mine) is type(theirs):
            values[name] = _with_marked(theirs, mine, kind)
    return values


def with_loaded_agents(hyper_params: HyperParameters, names: list[str], runs_dir: Path) -> HyperParameters:
    """Returns hyper-parameters in which agents with `load_checkpoint_and_parameters` have those of their runs."""
    loading: dict[str, AgentParameters] = {}
    for name in names:
        wanted = hyper_params.get(f"agents.{name}")
        if wanted.load_checkpoint_and_parameters:
            theirs = hyper_params_of(runs_dir, wanted.checkpoint_run_id).get(f"agents.{name}")
            kept = {each.name for each in fields(wanted) if each.name.startswith(("checkpoint_", "load_checkpoint"))}
            values = {**theirs.to_dict(), **{key: getattr(wanted, key) for key in kept}}
            loading[name] = type(theirs).from_dict(values)
    if not loading:
        return hyper_params
    return HyperParameters.from_dict({**hyper_params.to_dict(), "agents": {**(hyper_params.agents or {}), **loading}})


def load_agents(policy: TeamPolicy, hyper_params: HyperParameters, runs_dir: Path) -> list[str]:
    """Loads weights of agents with `load_checkpoint_and_parameters` from checkpoints of local runs; returns names."""
    loaded = []
    for name, agent in policy.agents.items():
        wanted = hyper_params.get(f"agents.{name}")
        if not wanted.load_checkpoint_and_parameters:
            continue
        version = wanted.checkpoint_version
        place = f"{wanted.checkpoint_run_id}@{version}"
        weights = agent_weights(load(checkpoint_of(runs_dir, place)).state["training"], name)
        own = agent.state_dict()
        if not weights.keys() & own.keys():
            raise CheckpointIncompatible(f"agents.{name}: {place} has no weights of an agent of this name")
        try:
            # A run that trained by another type of trainer has only some of the parts.
            agent.load_state_dict({**own, **{key: value for key, value in weights.items() if key in own}})
        except (KeyError, ValueError, RuntimeError, TypeError) as error:
            first = " ".join(str(error).split())[:200]
            raise CheckpointIncompatible(f"agents.{name}: the weights of {place} do not fit ({first})") from error
        loaded.append(name)
    return loaded


def agent_weights(training: State, name: str) -> State:
    """Returns the weights of one agent by part, in a state of the core's loop or of a hosted one."""
    if "learners" in training:
        prefix = f"agents.{name}."
        policy = training["learners"][LANES]["policy"]
        return as_tensors({key.removeprefix(prefix): v for key, v in policy.items() if key.startswith(prefix)})
    parts = training.get("kept", {}).get("parts", {})
    own = {key.removeprefix(f"{name}_"): part for key, part in parts.items() if key.startswith(f"{name}_")}
    found = {f"{part}.{key}": value for part, state in own.items() for key, value in state.items()}
    return as_tensors(found)
