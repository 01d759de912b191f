"""Parameters and weights from local runs, and conversions of older hyper-parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.errors import CheckpointIncompatible, SettingsError
from quintain.experiments.base_runs import agent_weights, hyper_params_of
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.migrate import convert_hyper_param_dict, register_conversion_function
from quintain.experiments.run import run_experiment
from quintain.services.checkpoints.catalog import load
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
        run_experiment(params(base_run={"base_run_type": "parameters"}), output_dir=tmp_path)
    with pytest.raises(SettingsError, match="works with trainers of text"):
        run_experiment(params(base_run={"base_run_type": "rerun_tests", "run_id": "first"}), output_dir=tmp_path)


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
        run_experiment(params(agents={"prover": {**loading, "checkpoint_run_id": None}, "_default": {}}))


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


def test_a_version_without_one_conversion_is_refused() -> None:
    with pytest.raises(SettingsError, match="there is no conversion towards"):
        HyperParameters.from_dict({**HAND, "_package_name": "nip", "_package_version": "7.2"})
    with pytest.raises(SettingsError, match='found those of package "pip"'):
        HyperParameters.from_dict({**HAND, "_package_name": "pip", "_package_version": "1"})
    for _ in range(2):
        register_conversion_function("0.0.77", "0.1")(dict)
    with pytest.raises(SettingsError, match="there is 2 conversions"):
        HyperParameters.from_dict({**HAND, "_package_version": "0.0.77"})
