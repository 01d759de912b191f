"""Agents that learn labels by themselves: bodies and heads, as a trainer and as pre-training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.core.rng import Rng
from quintain.errors import SettingsError
from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.factory import build_scenario_instance
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.run import prepare_experiment, run_experiment
from quintain.experiments.scenario_env import ScenarioEnv
from quintain.experiments.solo_agent import SoloAgent, SoloFit
from quintain.experiments.translate import run_settings
from quintain.runs import launch
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile

SOLO = {"num_epochs": 6, "batch_size": 96, "learning_rate": 0.01}


def experiment(trainer: str = "solo_agent", **given: Any) -> HyperParameters:
    return HyperParameters(
        "find_the_plus",
        trainer,
        "generated",
        "adp",
        solo_agent={**SOLO, **given.pop("solo_agent", {})},
        dataset_options={"max_train_size": 256},
        rl={"frames_per_batch": 64, "minibatch_size": 32, "num_iterations": 2},
        **given,
    )


def fit_of(hyper_params: HyperParameters) -> SoloFit:
    instance = build_scenario_instance(hyper_params, ExperimentSettings())
    env = instance.train_environment
    assert isinstance(env, ScenarioEnv)
    agents = {}
    for number, (name, agent) in enumerate(instance.agents.items()):
        if agent.body is not None and agent.solo_head is not None:
            agents[name] = SoloAgent(number, agent.body, agent.solo_head)
    return SoloFit(hyper_params, env.scenario, agents, Rng(4))


def test_a_fit_is_that_of_torchs_adam() -> None:
    factors = {"agent_lr_factor": {"actor": 0.5, "critic": 0.5}, "body_lr_factor": {"actor": 0.2, "critic": 0.2}}
    hyper_params = experiment(agents={"prover": factors, "verifier": {}})
    fit, other = fit_of(hyper_params), fit_of(hyper_params).agents["prover"]
    adam = torch.optim.Adam(
        [
            {"params": list(other.body.parameters()), "lr": 0.01 * 0.5 * 0.2},
            {"params": list(other.solo_head.parameters()), "lr": 0.01 * 0.5},
        ],
        eps=1e-5,
    )
    losses = []
    for epoch in range(3):
        fit.train_epoch(epoch)
        order = torch.from_numpy(Rng(4).generator("permutation", epoch).permutation(256))
        for rows in (order[:96], order[96:192], order[192:]):
            logits = other.solo_head(other.body(fit.train_points.seen[rows, 0]))
            picked = torch.log_softmax(logits, 1)[torch.arange(len(rows)), fit.train_points.labels[rows]]
            adam.zero_grad()
            (-picked.mean()).backward()
            adam.step()
            losses.append(float(-picked.detach().mean()))
    assert losses[-1] < losses[0]
    for (name, own), theirs in zip(fit.agents["prover"].named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-6, msg=name)


def test_bodies_learn_and_every_parameter_is_in_one_group() -> None:
    zero = {"body_lr_factor": {"actor": 0.0, "critic": 0.0}}
    fit = fit_of(experiment(agents={"prover": {}, "verifier": zero}))
    before = {
        (name, part): each.detach().clone()
        for name, agent in fit.agents.items()
        for part, each in agent.named_parameters()
    }
    for epoch in range(6):
        fit.train_epoch(epoch)
    for name, agent in fit.agents.items():
        assert set(fit.optimizers[name].groups) == {part for part, _ in agent.named_parameters()}
        for part, each in agent.named_parameters():
            is_frozen = name == "verifier" and part.startswith("body.")
            assert torch.equal(each, before[name, part]) == is_frozen, (name, part)
    assert fit.test()["prover.test_accuracy"] == 1.0
    # It sees nothing of the board: as often right as its one answer is the label.
    labels = fit.test_points.labels.float().mean()
    assert fit.test()["verifier.test_accuracy"] in (pytest.approx(float(labels)), pytest.approx(1 - float(labels)))


def test_the_override_gives_bodies_the_full_rate() -> None:
    zero = {"body_lr_factor": {"actor": 0.0, "critic": 0.0}}
    given = {"agents": {"prover": zero, "verifier": {}}, "solo_agent": {"body_lr_factor_override": True}}
    groups = fit_of(experiment(**given)).optimizers["prover"].groups
    assert {(group.learning_rate_factor, group.frozen) for group in groups.values()} == {(1.0, False)}


def test_the_trainer_logs_epochs_and_a_test(tmp_path: Path) -> None:
    hyper_params = experiment(agents={"prover": {}, "verifier": {"is_random": True}})
    assert prepare_experiment(hyper_params).total_num_iterations == 7
    run_experiment(hyper_params, run_id="solo", output_dir=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "solo" / "metrics.jsonl").read_text().splitlines()]
    accuracies = [row["train/prover.train_accuracy"] for row in rows if "train/prover.train_accuracy" in row]
    assert len(accuracies) == 6
    assert accuracies[-1] > accuracies[0]
    ends = ("prover.test_accuracy", "test/prover.accuracy")
    tested = [value for row in rows for name, value in row.items() if name.endswith(ends)]
    assert tested == [1.0]
    assert not any("verifier" in name for row in rows for name in row)


def test_pre_training_leaves_bodies_fitted_and_heads_as_they_were(tmp_path: Path) -> None:
    trainers = {}
    for name, is_pretrained in (("plain", False), ("fitted", True)):
        hyper_params = experiment("vanilla_ppo", pretrain_agents=is_pretrained)
        run_file = RunFile.from_mapping(run_settings(hyper_params), origin=PYTHON)
        made = launch.start(run_file, runs_dir=tmp_path, run_id=name)
        trainers[name] = made.trainer
        before = {key: each.detach().clone() for key, each in made.trainer.policy.named_parameters()}
        if is_pretrained:
            made.trainer.events.start(made.trainer)
            moved = {key for key, each in made.trainer.policy.named_parameters() if not torch.equal(each, before[key])}
            assert moved == {key for key in before if ".body." in key}
            assert made.trainer.stats
        made.trainer.train()
        made.trainer.close()
        made.run.close()
    rows = [json.loads(line) for line in (tmp_path / "fitted" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["train/prover.pretrain_test_accuracy"] == 1.0
    with pytest.raises(SettingsError, match="event pretrain_bodies"):
        Trainer("ppo", "CartPole-v1", events=[{"type": "pretrain_bodies", "on": "startup"}])
