"""Agents of experiments by nip's parameters: learning rates of parts, freezing, hand-written and random agents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.algorithms.team_ppo import TeamPPO
from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import AgentUpdateSchedule
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.run import run_experiment
from quintain.experiments.translate import run_settings
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
