"""TD3 as a user writes it: short, from public names, with the shipped one's losses, resumed exactly and over ranks."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.settings import TD3Settings
from quintain.algorithms.td3 import TD3
from quintain.core.process_group import ProcessGroup
from quintain.core.rng import Rng
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.settings import DeterministicActorSettings
from quintain.runs.assemble import assemble
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.algorithms.test_td3 import FLAT, minibatch
from tests.ranks.party import Arrays, on_ranks
from tests.trainers.small_runs import NoSession

WORDS = (
    "num_lanes=4", "rollout.num_steps=2", "batch_size=16", "hidden_sizes=[8]", "buffer_size=100", "learning_starts=20",
    "updates_per_step=0.5", "num_return_steps=2",
)  # fmt: skip


def settings(*words: str) -> RunFile:
    return RunFile.from_names("examples.extending.td3:MyTD3", "Pendulum-v1", *WORDS, *words)


def test_its_losses_are_those_of_the_shipped_one() -> None:
    example = importlib.import_module("examples.extending.td3")
    mine: Any = example.MyTD3(example.MyTD3Settings(), actor(), None, Rng(2))
    shipped = TD3(TD3Settings(), actor(), None, Rng(2))
    with torch.no_grad():
        for own, theirs in ((mine.critics, shipped.critics), (mine.target_critics, shipped.target_critics)):
            for which, twin in enumerate(own.twins):
                for (weight, bias), (weights, biases) in zip(twin.weights_and_biases, theirs.layers, strict=True):
                    weight.copy_(weights[which].T)
                    bias.copy_(biases[which, 0])
    rows = minibatch()
    for loss in ("loss", "policy_loss"):
        torch.testing.assert_close(getattr(mine, loss)(rows, 0.0).total, getattr(shipped, loss)(rows, 0.0).total)


def actor() -> DeterministicActor:
    return DeterministicActor(DeterministicActorSettings(hidden_sizes=(8, 6)), FLAT, Rng(1))


def test_a_run_that_is_stopped_goes_on_as_if_it_was_not() -> None:
    assert_resumes_exactly(settings("budget.env_steps=160"), stop_after_steps=[11, 17])


def learn(world: ProcessGroup, num_cycles: int) -> Arrays:
    torch.set_num_threads(1)
    trainer = assemble(settings("num_ranks=2", "budget.env_steps=1M"), NoSession(), WriterGroup([]), world=world)
    for _ in range(num_cycles):
        assert trainer.advance()
    algorithm: Any = trainer.algorithm
    networks = (trainer.policy, algorithm.critics, algorithm.target_critics, algorithm.target_actor)
    weights = [parameter.detach().flatten() for network in networks for parameter in network.parameters()]
    steps = [float(optimizer.num_steps) for optimizer in algorithm.optimizers.values()]
    return {"weights": torch.cat(weights).numpy(), "steps": np.array([trainer.progress.env_steps, *steps])}


@pytest.mark.slow
def test_two_ranks_hold_equal_weights(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn, 20)
    assert one["weights"].tobytes() == other["weights"].tobytes()
    # 20 cycles of 8 steps, half a gradient step for each after the first two, every second of them the policy's.
    assert one["steps"].tolist() == other["steps"].tolist() == [160, 72, 36]
