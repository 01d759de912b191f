"""Ranks that learn from replay: each remembers its own lanes, and all hold the same weights to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.process_group import ProcessGroup
from quintain.runs.assemble import assemble
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from tests.ranks.commands import run
from tests.ranks.party import Arrays, on_ranks
from tests.ranks.test_parity import Deaf
from tests.resume.outcome import digest_of, rows_of
from tests.trainers.small_runs import NoSession

SETTINGS = (
    "num_lanes=4", "rollout.num_steps=2", "batch_size=16", "hidden_sizes=[8]", "buffer_size=100", "learning_starts=20",
    "updates_per_step=0.5", "num_return_steps=2", "normalize_obs=true", "num_ranks=2",
)  # fmt: skip


def learn(world: ProcessGroup, num_cycles: int, is_deaf: bool) -> Arrays:
    torch.set_num_threads(1)
    if is_deaf:
        world.__class__ = Deaf
    run_file = RunFile.from_names("sac", "Pendulum-v1", *SETTINGS, "budget.env_steps=1M")
    trainer = assemble(run_file, NoSession(), WriterGroup([]), world=world)
    for _ in range(num_cycles):
        assert trainer.advance()
    algorithm: Any = trainer.algorithm
    store: Any = trainer.store
    return {
        "weights": algorithm.optimizer.flat.detach().numpy(),
        "targets": torch.cat([p.flatten() for p in algorithm.targets.parameters()]).numpy(),
        "scale": algorithm.critics.encoder.normalizer.scale.numpy(),
        "steps": np.array([trainer.progress.env_steps, float(algorithm.optimizer.num_steps)]),
        "remembered": store.memory.rows["float32"].copy(),
    }


@pytest.mark.slow
def test_two_ranks_hold_equal_bits(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn, 30, False)
    for name in ("weights", "targets", "scale", "steps"):
        assert one[name].tobytes() == other[name].tobytes(), name
    # 30 cycles of 8 steps; the first two end before step 20, and half as many gradient steps as steps follow.
    assert one["steps"].tolist() == [240, 112]
    assert one["remembered"].shape == (50, 9)
    assert one["remembered"].tobytes() != other["remembered"].tobytes()


def learn_recurrently(world: ProcessGroup, num_cycles: int) -> Arrays:
    torch.set_num_threads(1)
    changes = ("rollout.num_steps=6", "num_return_steps=1", "memory={cell: gru, size: 4}")
    words = [word for word in SETTINGS if word.partition("=")[0] not in {"rollout.num_steps", "num_return_steps"}]
    run_file = RunFile.from_names("sac", "Pendulum-v1", *words, *changes, "budget.env_steps=1M")
    trainer = assemble(run_file, NoSession(), WriterGroup([]), world=world)
    for _ in range(num_cycles):
        assert trainer.advance()
    algorithm: Any = trainer.algorithm
    store: Any = trainer.store
    return {
        "weights": algorithm.optimizer.flat.detach().numpy(),
        "slow": torch.cat([p.flatten() for p in algorithm.slow.parameters()]).numpy(),
        "steps": np.array([trainer.progress.env_steps, float(algorithm.optimizer.num_steps)]),
        "remembered": store.memory.rows["float32"].copy(),
    }


def learn_td3_and_dqn(world: ProcessGroup) -> Arrays:
    torch.set_num_threads(1)
    found = {}
    for name, env in (("td3", "Pendulum-v1"), ("dqn", "CartPole-v1")):
        run_file = RunFile.from_names(name, env, *SETTINGS, "budget.env_steps=1M")
        trainer = assemble(run_file, NoSession(), WriterGroup([]), world=world)
        for _ in range(15):
            assert trainer.advance()
        algorithm: Any = trainer.algorithm
        networks = [each for each in vars(algorithm).values() if isinstance(each, torch.nn.Module)]
        weights = [parameter.detach().flatten() for network in networks for parameter in network.parameters()]
        found[f"{name} weights"] = torch.cat(weights).numpy()
        found[f"{name} steps"] = np.array([float(each.num_steps) for each in algorithm.optimizers.values()])
        found[f"{name} exploration"] = trainer.policy.exploration.numpy()  # type: ignore[union-attr,operator]  # a buffer
    return found


@pytest.mark.slow
def test_two_ranks_of_td3_and_dqn_hold_equal_bits(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn_td3_and_dqn)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].tobytes() == other[name].tobytes(), name
    # 15 cycles of 8 steps, the first two without learning, half as many gradient steps; every second is the policy's.
    assert one["td3 steps"].tolist() == [52, 26]
    assert one["dqn steps"].tolist() == [52]


@pytest.mark.slow
def test_two_ranks_that_replay_sequences_hold_equal_bits(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn_recurrently, 10)
    for name in ("weights", "slow", "steps"):
        assert one[name].tobytes() == other[name].tobytes(), name
    # 10 cycles of 24 steps, the first of which is beyond step 20 already.
    assert one["steps"].tolist() == [240, 120]
    assert len(one["remembered"]) == 8, "50 transitions of each rank in sequences of 6"
    assert one["remembered"].tobytes() != other["remembered"].tobytes()


@pytest.mark.slow
def test_without_the_all_reduce_the_ranks_drift_apart(tmp_path: Path) -> None:
    one, other = on_ranks(2, tmp_path, learn, 10, True)
    assert not np.allclose(one["weights"], other["weights"], atol=1e-4)


@pytest.mark.slow
def test_what_ranks_remember_is_in_the_checkpoint(tmp_path: Path) -> None:
    def words(name: str, budget: int) -> list[str]:
        common = [*SETTINGS, "report.every_updates=10", f"budget.env_steps={budget}", "--run-id", name, "--quiet"]
        return ["train", "sac", "Pendulum-v1", *common, "experiment.behaviors.default.events=[]"]

    status, printed = run(tmp_path, words("whole", 480))
    assert status == 0, printed
    status, printed = run(tmp_path, words("parts", 240))
    assert status == 0, printed
    status, printed = run(tmp_path, ["resume", "parts", "budget.env_steps=480", "--quiet"])
    assert status == 0, printed
    whole, parts = tmp_path / "runs" / "whole", tmp_path / "runs" / "parts"
    assert digest_of(parts) == digest_of(whole)
    assert rows_of(parts) == rows_of(whole)
