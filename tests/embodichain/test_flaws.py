"""Each flaw that was found in EmbodiChain's trainer, as a test of what happens here instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain import PPO, ActorCritic, ActorCriticSettings, PPOSettings, RunFile, Trainer
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.gym.lanes import LaneEnv
from quintain.errors import SettingsError
from quintain.rollouts.evaluate import Evaluator
from quintain.rollouts.sync_collector import SyncCollector
from quintain.runs.launch import resume, start
from quintain.services.events import On
from quintain.settings.outline import RunTree
from tests.declared import declared
from tests.embodichain.parts import Keeps, SummaryWriter, parts, quiet_trainer
from tests.envs.point_mass import PointMass
from tests.playing import played
from tests.scripted import Episode, LinearPolicy, never, scripted_env, value_at


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_configured_training_events_are_applied_and_idle_ones_are_reported() -> None:
    writer, calls = Keeps(), []
    event_cfg = {
        "due": {"func": lambda env, lanes: calls.append(lanes), "mode": "interval", "interval_step": 8},
        "idle": {"func": lambda env, lanes: None, "mode": "attach"},
    }
    trainer = quiet_trainer(16, 32, writer, event_cfg=event_cfg)
    trainer.events.add(On("promotion"), lambda trainer: None)
    trainer.train(64)
    assert len(calls) == 2
    [warning] = [note for note in writer.notes if "W0214" in note]
    assert warning == "warning[W0214]: these events never happened in this run: <lambda>, idle"


def test_evaluation_recorders_are_flushed_after_every_evaluation(tmp_path: Path) -> None:
    class Recorder:
        def __init__(self, cfg: Any, env: Any) -> None:
            self.frames: list[float] = []
            self.num_files = 0

        def __call__(self, env: Any, lanes: Any) -> None:
            self.frames.append(float(env.position[0]))

        def flush(self, directory: Path) -> None:
            self.num_files += 1
            (directory / f"{self.num_files}.txt").write_text(str(len(self.frames)))
            self.frames.clear()

    trainer = quiet_trainer(
        16,
        32,
        None,
        64,
        eval_env=PointMass(2),
        checkpoint_dir=tmp_path,
        exp_name="video",
        eval_event_cfg={"record": {"func": Recorder, "mode": "step"}},
    )
    trainer.train(128)
    files = sorted((tmp_path / "video" / "videos").iterdir())
    assert [path.name for path in files] == ["1.txt", "2.txt"]
    assert all(int(path.read_text()) > 0 for path in files)
    trainer.session.close()


def test_the_reset_of_class_functors_runs() -> None:
    class Remembers:
        def __init__(self, cfg: Any, env: Any) -> None:
            self.resets: list[int] = []

        def __call__(self, env: Any, lanes: Any) -> None: ...

        def reset(self, lanes: Any) -> None:
            self.resets.extend(lanes.tolist())

    trainer = quiet_trainer(16, 32, event_cfg={"functor": {"func": Remembers, "mode": "interval"}})
    functor = trainer.env.events.functors["functor"]
    trainer.train(64)
    assert sorted(functor.resets[:4]) == [0, 1, 2, 3]
    assert len(functor.resets) == 4 + trainer.progress.episodes


def test_a_time_limit_is_bootstrapped_from_the_episodes_own_last_observation() -> None:
    env = scripted_env([[Episode(2, "truncated")]], "lanes")
    policy = LinearPolicy(env.spec)
    algorithm = PPO(PPOSettings(normalize_advantage=False, gae_lambda=1.0), policy)
    rollout = Rollout(env.spec, num_lanes=1, num_steps=2, fields=declared())
    SyncCollector(env, policy, Rng(0)).collect(rollout)
    from quintain.data.rollout import Batch

    algorithm.estimate(Batch(rollout))
    # gamma 0.99: r_1 + gamma V(last observation) - V(s_1), not r_1 - V(s_1), and not the value of the next start.
    expected = 1.5 + 0.99 * value_at(0, 0, 2) - value_at(0, 0, 1)
    assert rollout[f.ADVANTAGE][0, 1].item() == pytest.approx(expected)


def test_evaluation_leaves_the_global_generators_alone() -> None:
    trainer = quiet_trainer(16, 32, eval_env=PointMass(2))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    trainer._eval_once()
    assert torch.equal(torch.rand(3), expected)


def test_a_resumed_run_has_its_windows_counters_evaluations_and_events(tmp_path: Path) -> None:
    def settings(total: int) -> RunFile:
        return RunFile.from_names(
            "ppo", "CartPole-v1", f"total_timesteps={total}", "num_lanes=2", "num_steps=16", "batch_size=16",
            "env.max_episode_steps=10", "events=[{type: evaluate, every_env_steps: 64, num_episodes: 2}]",
            "env.env_events=[{type: randomize_parameters, mode: interval, interval_step: 7, "
            "ranges: {gravity: [9, 10]}}]",
        )  # fmt: skip

    launched = start(settings(96), runs_dir=tmp_path, run_id="a", quiet=True)
    before = launched.trainer
    before.train()
    before.close()
    launched.run.close()
    again = resume(tmp_path, "a", ["total_timesteps=192"], quiet=True)
    after = again.trainer
    assert after.ret_window == before.ret_window
    assert after.len_window == before.len_window
    assert after.progress.updates == before.progress.updates == 3
    assert vars(after.records) | {"goal_reached": False} == vars(before.records)
    assert after.firings.counts == before.firings.counts == {"evaluate": 2}
    assert after.env.state_dict()["events"]["firings"] == {"randomize_parameters": 96 // 2 // 7}
    after.train()
    # Due at 128 and at the end; the evaluation at 64 is not repeated.
    assert after.firings.counts == {"evaluate": 4}
    after.close()
    again.run.close()


def test_several_crossed_thresholds_make_one_evaluation_and_the_user_is_told() -> None:
    trainer = quiet_trainer(16, 32, None, 10, eval_env=PointMass(2))
    trainer.train(256)
    assert trainer.firings.counts["evaluate"] == 4  # once per update of 64 steps, not once per 10


def test_old_checkpoints_make_room_for_new_ones(tmp_path: Path) -> None:
    trainer = quiet_trainer(16, 32, save_freq=64, checkpoint_dir=tmp_path, exp_name="many", keep=3)
    trainer.train(64 * 8)
    assert len(list((tmp_path / "many" / "checkpoints").glob("0*"))) == 3
    trainer.session.close()


def test_evaluation_does_not_prefer_short_episodes() -> None:
    """Horizons 1, 2 and 3 and four episodes: lane 0 plays two, so the mean is (1 + 1 + 2 + 3) / 4."""
    env = scripted_env([[Episode(length, "terminated")] for length in (1, 2, 3)], "lanes")
    results = played(Evaluator(env, 4, Rng(0)), LinearPolicy(env.spec), deterministic=True, should_stop=never)
    assert results is not None
    assert results.mean_length == 1.75


def test_rewards_do_not_depend_on_where_rollouts_begin_or_whether_there_is_one() -> None:
    """The price on jerks needs the action before; the environment owns it, so a rollout's first step has one too."""

    def rewards(num_steps: int) -> torch.Tensor:
        env = PointMass(2, max_episode_steps=None, goal=0.0)
        policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,)), env.spec, Rng(1))
        collector = SyncCollector(env, policy, Rng(2))
        rollout = Rollout(env.spec, num_lanes=2, num_steps=num_steps, fields=declared())
        parts = []
        for _ in range(12 // num_steps):
            collector.collect(rollout)
            parts.append(rollout[f.REWARD][:, :num_steps].clone())
        return torch.cat(parts, dim=1)

    assert torch.equal(rewards(3), rewards(12))
    env = PointMass(1, goal=0.0)
    env.reset()
    env.step(torch.tensor([[1.0]]))
    assert env.step(torch.tensor([[-1.0]])).info["rewards"]["jerk"].item() == 2.0  # type: ignore[index]


def grpo(**changes: Any) -> Trainer:
    settings = {"num_lanes": 4, "group_size": 2, "num_steps": 8, "batch_size": 16, "events": [], "writers": []}
    return Trainer("grpo", "CartPole-v1", **{**settings, **changes})


def test_episodes_that_a_fresh_start_cuts_are_not_added_to_the_next_ones() -> None:
    trainer = grpo(**{"env.max_episode_steps": 500})
    for _ in range(6):
        trainer.advance()
    # A rollout of 8 steps never holds a longer episode, whatever was cut before.
    assert all(length <= 8 for length in trainer.len_window)


def test_groups_begin_alike_and_differently_from_each_other() -> None:
    trainer = grpo()
    trainer.advance()
    starts = trainer.taken.rollout[f.OBS][:, 0]
    assert torch.equal(starts[0], starts[1])
    assert torch.equal(starts[2], starts[3])
    assert not torch.equal(starts[0], starts[2])


def test_statistics_of_steps_take_one_transfer_per_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = quiet_trainer(16, 32)
    in_collect, fetched = False, 0
    original = torch.Tensor.__float__

    def count(self: torch.Tensor) -> float:
        nonlocal fetched
        fetched += in_collect
        return original(self)

    monkeypatch.setattr(torch.Tensor, "__float__", count)
    collect = trainer.source.collector.collect

    def watched(*args: Any) -> bool:
        nonlocal in_collect
        in_collect = True
        try:
            return collect(*args)
        finally:
            in_collect = False

    trainer.source.collector.collect = watched
    trainer._stage_collect()
    assert fetched == 0
    row = trainer.stats.state_dict()["sums"]
    assert {"rewards/nearer", "rewards/jerk", "metrics/distance"} <= set(row)


def test_means_over_a_rollout_are_those_of_its_steps() -> None:
    trainer = quiet_trainer(16, 32)
    seen: list[torch.Tensor] = []
    trainer.source.listen(lambda step, info: seen.append(info["metrics"]["distance"].mean()))
    trainer._stage_collect()
    assert trainer.stats.state_dict()["sums"]["metrics/distance"] == pytest.approx(float(torch.stack(seen).mean()))


def test_collecting_builds_no_tensordict_per_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensordict import TensorDict

    trainer = quiet_trainer(16, 32)
    trainer.advance()
    made = 0
    original = TensorDict.__init__

    def count(self: Any, *args: Any, **keywords: Any) -> None:
        nonlocal made
        made += 1
        original(self, *args, **keywords)

    monkeypatch.setattr(TensorDict, "__init__", count)
    trainer.advance()
    assert made == 0


def test_one_setting_alone_names_the_device() -> None:
    def names(schema: Any) -> list[str]:
        if isinstance(schema, dict):
            below = [name for value in schema.values() for name in names(value)]
            return [*(name for name in schema.get("properties", {}) if "device" in name or "gpu" in name), *below]
        return [name for value in schema for name in names(value)] if isinstance(schema, list) else []

    # What a cluster reserves is a number of GPUs, and says nothing of where to learn.
    assert [name for name in names(RunTree.model_json_schema()) if not name.startswith("num_")] == ["device"]


def test_what_is_misspelt_is_refused_and_not_replaced() -> None:
    with pytest.raises(SettingsError, match="activation"):
        Trainer("ppo", "CartPole-v1", activation="rellu")
    with pytest.raises(SettingsError, match="no setting is called"):
        quiet_trainer(16, 32, eval_frequency=100)


@pytest.mark.slow
def test_optional_loggers_are_not_imported(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom quintain import Trainer\n"
        "Trainer('ppo', 'CartPole-v1', num_steps=16, batch_size=16, events=[], writers=[]).train(128)\n"
        "assert not {'wandb', 'tensorboard', 'onnx', 'onnxruntime', 'PIL'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(root)}, capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_writer_that_fails_is_switched_off_and_said_so_and_training_goes_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Broken(SummaryWriter):
        def add_scalar(self, *args: Any) -> None:
            raise OSError("disk gone")

    trainer = quiet_trainer(16, 32, Broken())
    trainer.train(64 * 5)
    assert trainer.global_step == 320
    assert "W0811" in capsys.readouterr().err


def test_intervals_may_start_again_with_each_episode_or_not(tmp_path: Path) -> None:
    def calls(count_from: str) -> list[list[int]]:
        found: list[list[int]] = []
        factories = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=4)] * 2
        from quintain.envs.eventful import with_events

        cfg = {"e": {"func": lambda env, lanes: found.append(lanes.tolist()), "mode": "interval", "interval_step": 3,
                     "count_from": count_from}}  # fmt: skip
        env = with_events(LaneEnv("CartPole-v1", factories, Rng(0)), cfg, Rng(0))
        env.reset()
        for _ in range(9):
            env.step(torch.from_numpy(np.array([0, 1])))
        return found

    assert calls("run") == [[0, 1]] * 3  # steps 3, 6, 9
    assert calls("episode") == [[0, 1]] * 2  # steps 3 and 7: the third of each episode of four


def test_the_parts_are_checked_to_belong_together() -> None:
    policy, env, _ = parts()
    _, _, other = parts()
    with pytest.raises(SettingsError, match="trains another policy"):
        Trainer(policy, env, other, 16, 32)
