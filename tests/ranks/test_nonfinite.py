"""Ranks give up an update together, whichever of them met the number that is not finite, and go back together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.base import Loss
from quintain.core.process_group import ProcessGroup
from quintain.runs.assemble import assemble
from quintain.runs.ranks.follow import Follower
from quintain.runs.run import Run
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from tests.ranks.party import Arrays, on_ranks

LANES, STEPS, UPDATES = 4, 8, 6


def train(world: ProcessGroup, folder: str, mode: str) -> Arrays:
    torch.set_num_threads(1)
    run_file = RunFile.from_names(
        "ppo", "CartPole-v1", f"num_lanes={LANES}", f"num_steps={STEPS}", "batch_size=16", "num_epochs=1",
        "hidden_sizes=[4]", "compiled=false", f"total_timesteps={LANES * STEPS * UPDATES}", f"num_ranks={world.size}",
        "checkpoint.every_updates=2", "checkpoint.every_seconds=null", f"run.on_nonfinite_update={mode}", "writers=[]",
        "events=[{type: evaluate, every_updates: 3, num_episodes: 2}, {type: collect_data, every_updates: 3}]",
    )  # fmt: skip
    session: Any = Follower(run_file)
    if world.rank == 0:
        session = Run(run_file, [], runs_dir=Path(folder), is_kept=True)
    trainer = assemble(run_file, session, WriterGroup([]), world=world)
    loss, spoiled = trainer.algorithm.loss, iter([world.rank == 1])

    def spoil(minibatch: Any, fraction: float) -> Loss:
        found = loss(minibatch, fraction)
        # Only rank 1 meets it, once, in its fourth update.
        if trainer.guard.num_updates == 3 and next(spoiled, False):
            return found._replace(total=found.total * float("nan"))
        return found

    trainer.algorithm.loss = spoil  # type: ignore[method-assign]
    trainer.train()
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in trainer.policy.parameters()])
    numbers = [trainer.progress.env_steps, trainer.progress.updates, trainer.algorithm.learning_rate_scale]
    return {"weights": weights.numpy(), "numbers": np.array(numbers), "failed": np.array(trainer.guard.failed_at)}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "scale"), [("skip", 1.0), ("rollback", 0.5)])
def test_all_ranks_give_an_update_up_together(mode: str, scale: float, tmp_path: Path) -> None:
    first, second = on_ranks(2, tmp_path, train, str(tmp_path / "runs"), mode)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)
    assert np.isfinite(first["weights"]).all()
    assert first["numbers"].tolist() == [LANES * STEPS * UPDATES, UPDATES, scale]
    assert first["failed"].tolist() == [4]
    [run] = (tmp_path / "runs").iterdir()
    assert len(list((run / "crash").glob("*.safetensors"))) == 1
    assert len(list((run / "rollouts").iterdir())) == 2
