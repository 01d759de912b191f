"""Parameters and weights from local runs, and conversions of older hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import yaml

from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.experiments import migrate
from quintain.experiments.base_runs import agent_weights, hyper_params_of, with_base_run
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.migrate import convert_hyper_param_dict, register_conversion_function
from quintain.experiments.parameters_base import SubParameters, register_parameter_class
from quintain.experiments.run import run_experiment
from quintain.experiments.trainer_parameters import BaseRunPreserve
from quintain.services.checkpoints.catalog import load
from quintain.typing import JsonObject
from tests.experiments import test_run
from tests.experiments.test_tensordict_rl import SMALL, saved

HAND = {"scenario": "find_the_plus", "trainer": "vanilla_ppo", "dataset": "generated"}


def params(trainer: str = "vanilla_ppo", **given: Any) -> Any:
    return HyperParameters("find_the_plus", trainer, "generated", **{"rl": SMALL, **given})


def test_a_base_run_gives_all_parameters_but_itself(tmp_path: Path) -> None:
    run_experiment(params(seed=5, ppo={"clip_epsilon": 0.3}), run_id="first", output_dir=tmp_path)
    base = {"base_run_type": "parameters", "run_id": "first"}
    run_experiment(params(base_run=base), run_id="second", output_dir=tmp_path)
    first, second = hyper_params_of(tmp_path, "first"), hyper_params_of(tmp_path, "second")
    assert second.get("ppo.clip_epsilon") == 0.3
    assert second.seed == 5
    assert second.get("base_run.run_id") == "first"
    assert first.get("base_run.run_id") is None
    one, other = saved(tmp_path / "first"), saved(tmp_path / "second")
    assert all(np.array_equal(each, other["policy"][name]) for name, each in one["policy"].items())
    with pytest.raises(SettingsError, match=r"base_run\.run_id: not set"):
        params(base_run={"base_run_type": "parameters"})
    with pytest.raises(SettingsError, match="is not built"):
        params(base_run={"base_run_type": "rerun_tests", "run_id": "first"})


@pytest.mark.parametrize("source", ["vanilla_ppo", "supervised_toy"])
def test_an_agent_begins_with_the_weights_of_a_local_run(source: str, tmp_path: Path) -> None:
    assert test_run.Toy.trainer_type == "solo_agent"
    lr = {"agent_lr_factor": {"actor": 0.5, "critic": 0.5}}
    run_experiment(params(source, agents={"verifier": lr, "prover": {}}), run_id="source", output_dir=tmp_path)
    # A learning rate of 0 leaves weights as they were loaded.
    still = {"agent_lr_factor": {"actor": 0.0, "critic": 0.0}}
    loading = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "source"}
    agents = {"verifier": loading, "prover": still}
    run_experiment(params(agents=agents, seed=9), run_id="loaded", output_dir=tmp_path)
    # The parameters are those of the run that is loaded.
    assert hyper_params_of(tmp_path, "loaded").get("agents.verifier.agent_lr_factor.actor") == 0.5
    assert hyper_params_of(tmp_path, "loaded").get("agents.verifier.checkpoint_run_id") == "source"
    first = min((tmp_path / "loaded" / "checkpoints").glob("*-step-0"))
    begun = agent_weights(load(first).state["training"], "verifier")
    newest = max((tmp_path / "source" / "checkpoints").glob("*-step-*"), key=lambda each: each.name)
    wanted = agent_weights(load(newest).state["training"], "verifier")
    shared = begun.keys() & wanted.keys()
    assert any(name.startswith("body") for name in shared)
    assert all(np.array_equal(begun[name], wanted[name]) for name in shared)
    # It goes on without the run that it was loaded from being touched again.
    assert run_experiment(params(agents=agents, seed=9), run_id="loaded", output_dir=tmp_path).state == "finished"


def test_weights_that_are_not_there_are_refused(tmp_path: Path) -> None:
    run_experiment(params(interaction_protocol="solo_verifier"), run_id="alone", output_dir=tmp_path)
    loading = {"load_checkpoint_and_parameters": True, "checkpoint_run_id": "alone"}
    with pytest.raises(CheckpointIncompatible, match="no weights of an agent of this name"):
        run_experiment(params(agents={"prover": loading, "verifier": {}}), output_dir=tmp_path)
    with pytest.raises(SettingsError, match="checkpoint_run_id: not set"):
        params(agents={"prover": {**loading, "checkpoint_run_id": None}, "_default": {}})


def test_parameters_of_old_versions_are_converted_once() -> None:
    old = {
        **HAND,
        "interaction_protocol": "pvg",
        "pvg_protocol": {"_type": "PvgProtocolParameters", "max_message_rounds": 6, "min_message_rounds": 2},
        "spg": {"sos_a_param": 0.7, "sos_b_param": 0.2},
        "_package_name": "nip",
        "_package_version": "0.1.3",
    }
    before = repr(old)
    made = HyperParameters.from_dict(old)
    assert repr(old) == before
    assert made.interaction_protocol == "nip"
    assert made.get("nip_protocol.min_message_rounds") == 3
    assert made.get("spg.sos_scaling_factor") == 0.7
    converted = convert_hyper_param_dict(old)
    assert convert_hyper_param_dict(converted) == converted
    # What carries no version was written by hand, and is taken as it is.
    assert HyperParameters.from_dict({**HAND, "nip_protocol": {"min_message_rounds": 2}}).get(
        "nip_protocol.min_message_rounds"
    ) == 2  # fmt: skip
    assert HyperParameters.from_json(made.to_json()) == made


@pytest.mark.parametrize(("version", "rounds"), [("0.0.3", 4), ("0.0", 4), ("0.1.7", 2), ("0.1.0", 2)])
def test_minor_versions_are_converted_by_their_steps_or_taken_as_they_are(
    version: str, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "_steps", list(migrate._steps))
    monkeypatch.setattr(migrate, "quintain_version", lambda: "0.3.1")

    def one_more(data: JsonObject) -> JsonObject:
        return {**data, "nip_protocol": {"min_message_rounds": data["nip_protocol"]["min_message_rounds"] + 2}}

    # Only 0.0 has a step, to 0.1; there is none from 0.1 to 0.3, which adds parameters and changes none.
    register_conversion_function("0.0", "0.1")(one_more)
    old = {**HAND, "nip_protocol": {"min_message_rounds": 2}, "_package_version": version}
    converted = convert_hyper_param_dict(old)
    assert converted["nip_protocol"]["min_message_rounds"] == rounds
    assert converted["_package_version"] == "0.3.1"
    with pytest.raises(SettingsError, match="no conversion towards"):
        convert_hyper_param_dict({**HAND, "_package_version": "0.4.0"})


def test_the_parameters_of_an_older_version_s_run_are_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_experiment(params(seed=5), run_id="first", output_dir=tmp_path)
    stored = yaml.safe_load((tmp_path / "first/config.yaml").read_text())["experiment"]["env"]["hyper_params"]
    assert stored["_package_version"] == migrate.quintain_version()
    monkeypatch.setattr(migrate, "_steps", list(migrate._steps))
    monkeypatch.setattr(migrate, "quintain_version", lambda: "9.0.0")
    register_conversion_function("0.1", "9.0")(lambda data: {**data, "seed": data["seed"] + 1})
    base = {"base_run_type": "parameters", "run_id": "first"}
    assert with_base_run(params(base_run=base), tmp_path).seed == 6


@pytest.mark.slow
def test_a_base_run_of_text_gives_its_parameters(tmp_path: Path) -> None:
    text = ("code_validation", "pure_text_ei", "small_programs")
    given: dict[str, Any] = {"rl": {"num_iterations": 1, "rollouts_per_iteration": 2}, "seed": 4}
    first = HyperParameters(*text, **given, agents={"_default": {"model_provider": "tiny"}})
    run_experiment(first, run_id="first", output_dir=tmp_path)
    base = {"base_run_type": "parameters", "run_id": "first"}
    second = HyperParameters(*text, base_run=base)
    assert run_experiment(second, run_id="second", output_dir=tmp_path).state == "finished"
    found = hyper_params_of(tmp_path, "second")
    assert (found.seed, found.get("rl.rollouts_per_iteration"), found.get("base_run.run_id")) == (4, 2, "first")


@register_parameter_class
@dataclass
class KeptHere(SubParameters):
    """Parameters of which one stays as it is when a base run brings the others."""

    mine: Annotated[int, BaseRunPreserve("parameters")] = 1
    theirs: int = 1


def test_a_marked_parameter_keeps_its_value_with_a_base_run(tmp_path: Path) -> None:
    run_experiment(params(kept_here={"mine": 2, "theirs": 2}), run_id="first", output_dir=tmp_path)
    made = params(kept_here={"mine": 3, "theirs": 3}, base_run={"base_run_type": "parameters", "run_id": "first"})
    found = with_base_run(made, tmp_path)
    assert (found.get("kept_here.mine"), found.get("kept_here.theirs")) == (3, 2)


def test_a_version_without_one_conversion_is_refused() -> None:
    with pytest.raises(SettingsError, match="there is no conversion towards"):
        HyperParameters.from_dict({**HAND, "_package_name": "nip", "_package_version": "7.2"})
    with pytest.raises(SettingsError, match='found those of package "pip"'):
        HyperParameters.from_dict({**HAND, "_package_name": "pip", "_package_version": "1"})
    for _ in range(2):
        register_conversion_function("0.0.77", "0.1")(dict)
    with pytest.raises(SettingsError, match="there is 2 conversions"):
        HyperParameters.from_dict({**HAND, "_package_version": "0.0.77"})
