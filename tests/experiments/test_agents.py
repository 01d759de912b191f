"""Agents of experiments by nip's parameters: learning rates of parts, freezing, hand-written and random agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.algorithms.team_ppo import TeamPPO
from quintain.core.rng import Rng
from quintain.envs.settings import ScenarioSettings
from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import AgentUpdateSchedule
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.registry import build_protocol_handler
from quintain.experiments.run import prepare_experiment, run_experiment
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.experiments.translate import run_settings, team_settings
from quintain.policies.team import TeamAgent, TeamPolicy
from quintain.runs import launch
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile

RL = {"frames_per_batch": 64, "minibatch_size": 32, "num_iterations": 2, "num_epochs": 1}


def experiment(protocol: str = "adp", trainer: str = "vanilla_ppo", **given: Any) -> HyperParameters:
    rl = {**RL, **given.pop("rl", {})}
    return HyperParameters("find_the_plus", trainer, "generated", protocol, rl=rl, **given)


def launched(place: Path, hyper_params: HyperParameters) -> Any:
    run_file = RunFile.from_mapping(run_settings(hyper_params), origin=PYTHON)
    return launch.start(run_file, runs_dir=place, run_id="run")


def test_every_parameter_has_one_learning_rate(tmp_path: Path) -> None:
    factors = {
        "agent_lr_factor": {"actor": 0.5, "critic": 2.0},
        "body_lr_factor": {"actor": 0.1, "critic": 0.0},
    }
    made = launched(
        tmp_path, experiment(rl={"lr": 3.0, "use_shared_body": False}, agents={"prover": factors, "verifier": {}})
    )
    ppo = made.trainer.algorithm
    assert isinstance(ppo, TeamPPO)
    assert ppo.settings.learning_rate.at(0.0) == 3.0
    rates: dict[str, float] = {}
    for name, optimizer in ppo.optimizers.items():
        for parameter in optimizer.parameters:
            assert parameter not in rates, "in two optimizers"
            assert parameter.startswith(f"agents.{name}.")
            group = optimizer.groups.get(parameter)
            rates[parameter] = 3.0 if group is None else 0.0 if group.frozen else 3.0 * group.learning_rate_factor
    assert set(rates) == {name for name, _ in made.trainer.policy.named_parameters()}
    # A body: base x agent x body; a head: base x agent; 0 is frozen.
    parts = {"prover.body": 0.15, "prover.value_body": 0.0, "prover.policy_head": 1.5, "prover.value_head": 6.0}
    for parameter, rate in rates.items():
        part = ".".join(parameter.split(".")[1:3])
        assert rate == pytest.approx(parts.get(part, 3.0)), parameter
    before = {name: each.detach().clone() for name, each in made.trainer.policy.named_parameters()}
    made.trainer.train()
    made.trainer.close()
    made.run.close()
    moved = {name for name, each in made.trainer.policy.named_parameters() if not torch.equal(each, before[name])}
    assert moved == {name for name in rates if "prover.value_body" not in name}


def test_an_agent_with_factors_of_zero_keeps_its_weights(tmp_path: Path) -> None:
    zero = {"agent_lr_factor": {"actor": 0.0, "critic": 0.0}}
    made = launched(tmp_path, experiment(agents={"prover": zero, "verifier": {}}))
    before = {name: each.detach().clone() for name, each in made.trainer.policy.named_parameters()}
    made.trainer.train()
    made.trainer.close()
    made.run.close()
    moved = {
        name.split(".")[1] for name, each in made.trainer.policy.named_parameters() if not each.equal(before[name])
    }
    assert moved == {"verifier"}


def test_a_shared_body_has_one_learning_rate() -> None:
    with pytest.raises(SettingsError, match=r"agents\.prover: actor and critic have different"):
        run_settings(experiment(agents={"prover": {"agent_lr_factor": {"actor": 1.0, "critic": 0.5}}, "verifier": {}}))


@pytest.mark.parametrize("trainer", ["vanilla_ppo", "reinforce"])
def test_hand_written_and_random_agents_train_the_others(tmp_path: Path, trainer: str) -> None:
    agents = {"prover0": {"is_random": True}, "prover1": {"use_manual_architecture": True}, "verifier": {}}
    made = launched(tmp_path, experiment("debate", trainer, agents=agents, rl={"steps_per_env_per_iteration": 8}))
    names = {name.split(".")[1] for name, _ in made.trainer.policy.named_parameters()}
    assert names == {"verifier"}
    made.trainer.train()
    made.trainer.close()
    made.run.close()


class EveryOther(AgentUpdateSchedule):
    """Updates in even iterations."""

    def arguments(self) -> dict[str, int | bool]:
        return {}

    def is_updated(self, iteration: int) -> bool:
        return iteration % 2 == 0


def test_what_the_core_cannot_do_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"agents\.prover\.update_schedule") as found:
        run_settings(experiment(agents={"prover": {"update_schedule": EveryOther()}, "verifier": {}}))
    assert found.value.code == "E0282"
    with pytest.raises(SettingsError, match='"image_classification" is not shipped; decorate'):
        run_experiment(HyperParameters("image_classification", "vanilla_ppo", "cifar"))


def policy_of(**given: Any) -> TeamPolicy:
    """Returns the policy of an experiment before training."""
    hyper_params = experiment(**given)
    protocol = build_protocol_handler(hyper_params)
    settings = team_settings(hyper_params, protocol)
    lanes = len(protocol.agent_names)
    env = ScenarioEnv(ScenarioSettings(hyper_params=hyper_params.to_dict(), num_lanes=lanes), lanes, Rng(0))
    return TeamPolicy(settings, env.spec, Rng(1))


def test_the_representation_is_the_last_layer_of_bodies() -> None:
    small, large = policy_of(d_representation=5).agents["prover"], policy_of().agents["prover"]
    assert isinstance(small, TeamAgent)
    assert isinstance(large, TeamAgent)
    assert [each.policy_head.in_features for each in (small, large)] == [5, 16]
    assert small.value_head.in_features == 5


def test_initial_weights_are_orthogonal_times_a_gain_or_uniform() -> None:
    agents = {
        "prover": {"orthogonal_initialisation_gain": 0.5},
        "verifier": {"use_orthogonal_initialisation": False},
    }
    plain, changed = (dict(policy_of(**more).named_parameters()) for more in ({}, {"agents": agents}))
    for name, weight in changed.items():
        if name.startswith("agents.prover.") and name.endswith("weight"):
            assert torch.equal(weight, 0.5 * plain[name]), name
    assert not any(each.any() for name, each in plain.items() if name.endswith("bias"))
    bias = changed["agents.verifier.policy_head.bias"]
    # Uniform within 1 over the root of 16 inputs.
    assert bias.abs().max() <= 0.25
    assert bias.abs().max() > 0.1
    # Rows of the first layer's weights are orthogonal: its gain is the root of 2.
    first = next(each for name, each in plain.items() if name.startswith("agents.prover.body") and each.dim() == 2)
    rows = first @ first.T if first.shape[0] <= first.shape[1] else first.T @ first
    torch.testing.assert_close(rows, 2.0 * torch.eye(len(rows)), atol=1e-5, rtol=0.0)


def test_one_factor_is_on_the_learning_rates_of_all_bodies() -> None:
    agents = {"prover": {"body_lr_factor": {"actor": 0.5, "critic": 0.5}}, "_default": {}}
    made = run_settings(experiment(rl={"body_lr_factor": 0.1}, agents=agents))["experiment"]
    groups = made["behaviors"]["default"]["algorithm"]["parameter_groups"]
    factors = {name: group["learning_rate_factor"] for name, group in groups.items()}
    assert factors == pytest.approx({"prover_body": 0.05, "verifier_body": 0.1})
    frozen = run_settings(experiment(rl={"body_lr_factor": 0.0}))["experiment"]
    assert frozen["behaviors"]["default"]["algorithm"]["parameter_groups"]["verifier_body"]["frozen"] is True


@pytest.mark.parametrize("trainer", ["vanilla_ppo", "solo_agent"])
@pytest.mark.parametrize(
    ("given", "address"),
    [
        ({"functionalize_modules": True}, "functionalize_modules is True"),
        ({"message_regression": {"enabled": True}}, "message_regression.enabled is True"),
        ({"message_size": 2}, "message_size is 2"),
        ({"include_linear_message_space": True}, "include_linear_message_space is True"),
        ({"protocol_common": {"randomize_prover_stance": True}}, "protocol_common.randomize_prover_stance is True"),
        ({"dataset_options": {"max_test_size": 9}}, "dataset_options.max_test_size is 9"),
        (
            {"agents": {"_default": {"normalize_message_history": True}}},
            "agents.prover.normalize_message_history is True",
        ),
        ({"agents": {"_default": {"checkpoint_project": "p"}}}, "agents.prover.checkpoint_project is 'p'"),
        ({"dataset": "eru10000"}, "dataset is 'eru10000'"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_refused(trainer: str, given: dict[str, Any], address: str) -> None:
    values = {"scenario": "find_the_plus", "trainer": trainer, "dataset": "generated", **given}
    with pytest.raises(SettingsError, match="leave it out") as caught:
        prepare_experiment(HyperParameters(**values))
    assert f"HyperParameters.{address}, and the trainer {trainer}" in str(caught.value)
    assert caught.value.code == "E0284"
