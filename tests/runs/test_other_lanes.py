"""A run that is resumed with other lanes begins new episodes; weights, moments, counters and replay buffer go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.runs import launch
from quintain.runs.launch import Launched
from quintain.settings.tree import RunFile

PPO = ("num_lanes=2", "num_steps=8", "batch_size=8", "num_epochs=1", "hidden_sizes=[4]", "events=[]")
SAC = ("num_lanes=2", "hidden_sizes=[4]", "events=[]", "buffer_size=512", "batch_size=8", "learning_starts=16")


def close(launched: Launched) -> None:
    launched.trainer.close()
    launched.run.close()


def stop_after(launched: Launched, num_steps: int) -> None:
    """Trains for so many steps of all lanes, which may end in the middle of a rollout."""
    trainer, steps = launched.trainer, 0

    def count(step: Any, info: dict[str, Any]) -> None:
        nonlocal steps
        steps += 1
        if steps == num_steps:
            trainer.stop("a test")

    trainer.source.listen(count)
    trainer.train()
    close(launched)


@pytest.mark.parametrize(
    ("change", "lanes"), [("num_envs=5", 5), ("num_steps=4", 2), ("seed=7", 2), ("env.max_episode_steps=9", 2)]
)
def test_ppo_goes_on_with_new_episodes(
    tmp_path: Path, change: str, lanes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1", *PPO, "total_timesteps=240")
    stop_after(launch.start(run_file, runs_dir=tmp_path, run_id="a", quiet=True), 21)
    before = launch.resume(tmp_path, "a", quiet=True)
    weights = {name: value.clone() for name, value in before.trainer.policy.state_dict().items()}
    # 21 steps of 2 lanes are two rollouts of 8 and 5 steps of a third, which are dropped with their episodes.
    assert (before.trainer.progress.env_steps, before.trainer.source.collector.cursor) == (32, 5)
    close(before)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    resumed = launch.resume(tmp_path, "a", [change])
    assert "so this resume is not exact: all lanes begin new episodes" in capsys.readouterr().out
    trainer = resumed.trainer
    assert trainer.progress.env_steps == 32
    assert all(torch.equal(value, weights[name]) for name, value in trainer.policy.state_dict().items())
    collector = trainer.source.collector
    assert (collector.cursor, collector.env.num_lanes, collector.first.all()) == (0, lanes, True)
    trainer.train()
    expected = resumed.run.last
    close(resumed)
    # From there on it is exact again: interrupted once more, it ends with the same digest.
    stop_after(launch.resume(tmp_path, "b", [change], quiet=True), 7)
    again = launch.resume(tmp_path, "b", quiet=True)
    again.trainer.train()
    close(again)
    assert expected is not None
    assert again.run.last is not None
    assert again.run.last.digest == expected.digest


def test_a_replay_buffer_goes_on(tmp_path: Path) -> None:
    run_file = RunFile.from_names("sac", "Pendulum-v1", *SAC, "total_timesteps=100")
    stop_after(launch.start(run_file, runs_dir=tmp_path, run_id="a", quiet=True), 30)
    before = launch.resume(tmp_path, "a", quiet=True)
    memory = before.trainer.learner.store.memory
    num_added, rows = memory.num_added, {k: v.copy() for k, v in memory.rows.items()}
    # The 30th step was not learned from yet; the resume with other lanes drops it.
    assert num_added == 58
    close(before)
    resumed = launch.resume(tmp_path, "a", ["num_envs=3"], quiet=True)
    memory = resumed.trainer.learner.store.memory
    assert memory.num_added == num_added
    assert all(np.array_equal(memory.rows[name], kept) for name, kept in rows.items())
    resumed.trainer.train()
    # 100 - 58 steps are left: 14 steps of 3 lanes.
    assert memory.num_added == num_added + 42
    close(resumed)
