"""Environments in worker processes give an off-policy run the same numbers as environments at home."""

from __future__ import annotations

import pytest
import torch

from quintain import Trainer


@pytest.mark.slow
def test_workers_change_no_number() -> None:
    weights = []
    for num_workers in (None, 2):
        trainer = Trainer(
            "sac", "Pendulum-v1", num_lanes=4, learning_starts=20, batch_size=16, hidden_sizes=[8], buffer_size=200,
            num_return_steps=2, writers=[], events=[], **{"env_workers.num_workers": num_workers},
        )  # fmt: skip
        trainer.train(400)
        weights.append(trainer.algorithm.optimizer.flat.detach().clone())
        trainer.close()
    assert torch.equal(*weights)
