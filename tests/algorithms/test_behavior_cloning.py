"""Behaviour cloning from rollouts that a run collected: its loss by hand, and that it teaches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quintain import Trainer
from quintain.algorithms import BehaviorCloning, BehaviorCloningSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import SettingsError
from tests.algorithms.samples import make_policy

SMALL: dict[str, Any] = {"num_lanes": 2, "num_steps": 16, "batch_size": 16, "num_epochs": 1, "writers": []}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rollouts that a run has collected."""
    place = tmp_path_factory.mktemp("runs")
    events = [{"type": "collect_data", "every_updates": 1}]
    Trainer("ppo", "CartPole-v1", events=events, runs_dir=place, run_id="shown", **SMALL).train(64)
    return place / "shown" / "rollouts"


@pytest.mark.parametrize("memory", ["", "lstm"])
def test_the_loss_is_the_mean_of_the_log_probabilities_that_are_known(memory: str, folder: Path) -> None:
    policy = Trainer(
        "ppo",
        "CartPole-v1",
        policy={"hidden_sizes": [8], **({"memory": {"size": 5}} if memory else {})},
        events=[],
        **SMALL,
    ).policy
    cloning = BehaviorCloning(BehaviorCloningSettings(path=str(folder), batch_size=32), policy, Rng(0))
    steps, lanes = cloning.is_known.shape
    assert (steps, lanes) == (16, 4)
    found = cloning.loss({}, 0.0).total.detach()
    draws = Rng(0).generator("demonstrations", 1)
    if memory:
        chosen = draws.integers(4, size=2)
        batch = {n: x[:, chosen].flatten(0, 1) for n, x in cloning.fields.items()}
        known = cloning.is_known[:, chosen].flatten()
        # The second rollout begins inside episodes: nothing is known before the next one begins.
        assert not cloning.is_known.all()
        log_prob = policy.evaluate_actions({**batch, f.POLICY_STATE: torch.zeros(2, policy.state_size)})[f.LOG_PROB]
    else:
        rows = draws.integers(64, size=32)
        batch = {n: x.flatten(0, 1)[rows] for n, x in cloning.fields.items()}
        known = cloning.is_known.flatten()[rows]
        log_prob = policy.evaluate_actions(batch)[f.LOG_PROB]
    torch.testing.assert_close(found, -log_prob[known].mean().detach())


def test_it_is_a_term_beside_online_ppo_and_makes_demonstrated_actions_likelier(folder: Path) -> None:
    losses: dict[str, Any] = {"behavior_cloning": {"path": str(folder), "coef": 1.0}}
    policy = {"type": "mine_policy", "network": {"memory": {"size": 8}}}
    trainer = Trainer(
        "online_ppo", "CartPole-v1", auxiliary_losses=losses, policy=policy, events=[], learning_rate=1e-2, **SMALL
    )
    cloning = trainer.algorithm.auxiliary_losses["behavior_cloning"]
    # A demonstrator that always does the same.
    cloning.fields[f.ACTION].zero_()
    before = float(cloning.loss({}, 0.0).total.detach())
    trainer.train(512)
    cloning.num_draws = 0
    assert float(cloning.loss({}, 0.0).total.detach()) < 0.8 * before


def test_files_of_other_spaces_are_refused(folder: Path) -> None:
    policy = make_policy(BehaviorSpec(obs=box(4), action=discrete(2)))
    with pytest.raises(SettingsError, match="is of other spaces") as refused:
        BehaviorCloning(BehaviorCloningSettings(path=str(folder)), policy, Rng(0))
    assert refused.value.code == "E0246"
    with pytest.raises(SettingsError, match="has no rollouts"):
        BehaviorCloning(BehaviorCloningSettings(path=str(folder.parent)), policy, Rng(0))
