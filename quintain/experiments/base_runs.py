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
from quintain.policies.team import TeamPolicy
from quintain.runs.launch import checkpoint_of
from quintain.runs.restore import stored_settings
from quintain.services.checkpoints.catalog import load
from quintain.services.files.run_directory import RunDirectory
from quintain.services.files.run_names import resolve_run
from quintain.typing import State


def hyper_params_of(runs_dir: Path, run_id: str) -> HyperParameters:
    """Returns the hyper-parameters of a run of an experiment."""
    directory = RunDirectory.open_existing(resolve_run(runs_dir, run_id))
    experiment = stored_settings(directory).experiment
    found = getattr(experiment.env, "hyper_params", None) or getattr(experiment.loop, "kwargs", {}).get("hyper_params")
    if not isinstance(found, Mapping):
        raise SettingsError(f"{directory.shown} is no run of an experiment: it has no hyper-parameters", code="E0276")
    return HyperParameters.from_dict(found)


def with_base_run(hyper_params: HyperParameters, runs_dir: Path) -> HyperParameters:
    """Returns the hyper-parameters of the base run, with `base_run` itself as it is; without one they stay the same."""
    base = hyper_params.get("base_run")
    if base.base_run_type == "none":
        return hyper_params
    if base.run_id is None:
        raise SettingsError(
            f'base_run.run_id: not set, and base_run_type is "{base.base_run_type}"; expected the name of a run',
            code="E0276",
        )
    if base.base_run_type == "rerun_tests":
        raise SettingsError(
            'base_run.base_run_type: "rerun_tests" works with trainers of text; expected "parameters"', code="E0276"
        )
    return HyperParameters.from_dict({**hyper_params_of(runs_dir, base.run_id).to_dict(), "base_run": base})


def with_loaded_agents(hyper_params: HyperParameters, names: list[str], runs_dir: Path) -> HyperParameters:
    """Returns hyper-parameters in which agents with `load_checkpoint_and_parameters` have those of their runs."""
    loading: dict[str, AgentParameters] = {}
    for name in names:
        wanted = hyper_params.get(f"agents.{name}")
        if wanted.load_checkpoint_and_parameters:
            if wanted.checkpoint_run_id is None:
                raise SettingsError(
                    f"agents.{name}.checkpoint_run_id: not set, expected the name of a run", code="E0276"
                )
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
        if not wanted.load_checkpoint_and_parameters or wanted.checkpoint_run_id is None:
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
