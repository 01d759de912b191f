"""The documented example, and every documented field and method, with the meaning that the document gives it."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from quintain import PPOSettings, SyncCollector, Trainer
from quintain.envs.events import EnvEventManager
from quintain.errors import CheckpointError, RunDirectoryError, SettingsError
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorOnlySettings
from quintain.runs import slots
from quintain.services.checkpoints.catalog import load
from quintain.services.checkpoints.state_files import digest_of
from quintain.services.events import EventManager, Every
from quintain.settings.embodichain import PARAMETERS
from tests.embodichain.parts import Keeps, SummaryWriter, parts, quiet_trainer
from tests.envs.point_mass import PointMass


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_usage_example_runs_as_written() -> None:
    policy, env, algorithm = parts()
    buffer_size, batch_size, writer, total_steps = 16, 32, SummaryWriter(), 200
    trainer = Trainer(policy, env, algorithm, buffer_size, batch_size, writer)
    trainer.train(total_steps)
    path = trainer.save_checkpoint()
    assert trainer.global_step == 256  # whole cycles of 4 lanes of 16 steps
    assert load(path).manifest.step == 256
    assert {"train/policy_loss", "rollout/ep_rew_mean", "rollout/ep_len_mean", "time/fps"} <= writer.tags
    assert {step for _, _, step in writer.scalars} == {64, 128, 192, 256}
    assert writer.num_flushes > 0


def test_buffer_size_is_the_steps_of_a_rollout_and_batch_size_that_of_a_minibatch() -> None:
    trainer = quiet_trainer(16, 32)
    trainer.advance()
    assert trainer.taken.rollout.num_steps == 16
    assert trainer.algorithm.settings.batch_size == 32
    sizes = [len(m["obs"]) for m in trainer.algorithm.minibatches(trainer.taken, trainer.algorithm.settings.batch_size)]
    assert sizes == [32, 32]
    # Two minibatches in each epoch, whatever size the algorithm was made with.
    assert int(trainer.algorithm.optimizer.num_steps) == 2 * trainer.algorithm.settings.num_epochs


def test_parameters_may_be_given_by_name_or_by_place_but_not_both() -> None:
    by_name, by_place = quiet_trainer(buffer_size=16, batch_size=32), quiet_trainer(16, 32)
    for trainer in (by_name, by_place):
        trainer.train(128)
    for mine, theirs in zip(by_name.policy.parameters(), by_place.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    with pytest.raises(TypeError, match="multiple values for argument 'batch_size'"):
        quiet_trainer(16, 32, batch_size=32)
    with pytest.raises(TypeError, match="eval_freq twice, by position and by name"):
        quiet_trainer(16, 32, None, 64, eval_freq=64)
    with pytest.raises(TypeError, match="at most 21 positional"):
        quiet_trainer(*[None] * 19)


def test_the_parts_that_were_given_are_the_ones_that_are_used() -> None:
    policy, env, algorithm = parts()
    writer, eval_env = SummaryWriter(), PointMass(2)
    trainer = Trainer(policy, env, algorithm, 16, 32, writer, eval_env=eval_env, writers=[])
    assert trainer.policy is policy
    assert trainer.env is env
    assert trainer.algorithm is algorithm
    assert trainer.writer is writer
    assert trainer.eval_env is eval_env


def test_a_ready_algorithm_keeps_its_own_settings() -> None:
    with pytest.raises(SettingsError, match="learning_rate cannot be changed on an algorithm that is ready"):
        quiet_trainer(16, 32, learning_rate=1e-2)


def test_event_managers_are_for_the_trainer_and_for_the_evaluations_environment() -> None:
    trainer = quiet_trainer(16, 32, eval_env=PointMass(2))
    assert isinstance(trainer.event_manager, EventManager)
    assert trainer.event_manager is trainer.events
    assert isinstance(trainer.eval_event_manager, EnvEventManager)
    assert quiet_trainer(16, 32).eval_event_manager is None


def test_global_step_counts_environment_steps_of_all_lanes() -> None:
    trainer = quiet_trainer(16, 32)
    assert trainer.global_step == 0
    trainer.advance()
    assert trainer.global_step == 64


def test_the_windows_hold_the_newest_hundred_episodes() -> None:
    trainer = quiet_trainer(32, 32)
    heard: list[tuple[float, int]] = []
    keep = trainer.source.collector.on_episodes

    def listen(returns: Any, lengths: Any) -> None:
        heard.extend(zip(returns.tolist(), lengths.tolist(), strict=True))
        keep(returns, lengths)

    trainer.source.collector.on_episodes = listen
    trainer.train(2_000)
    assert len(heard) > 100
    assert isinstance(trainer.ret_window, deque)
    assert trainer.ret_window.maxlen == trainer.len_window.maxlen == 100
    assert list(zip(trainer.ret_window, trainer.len_window, strict=True)) == heard[-100:]


def test_collect_rollout_goes_through_the_collector_and_lets_a_callback_see_every_step() -> None:
    trainer = quiet_trainer(16, 32)
    assert isinstance(trainer.source.collector, SyncCollector)
    seen: list[tuple[TensorDict, float]] = []
    rewards: list[torch.Tensor] = []

    def on_step(step: TensorDict, info: dict[str, Any]) -> None:
        seen.append((step, float(info["metrics"]["distance"].mean())))
        rewards.append(step["reward"].clone())

    assert trainer._collect_rollout(on_step)
    rollout = trainer.store.take().rollout
    assert len(seen) == 16
    for t, (step, _) in enumerate(seen):
        assert step.batch_size == torch.Size([4])
        assert step["reward"].data_ptr() == rollout.storage["reward"][t].data_ptr()
        assert torch.equal(rewards[t], rollout["reward"][:, t])


def test_a_callback_hears_its_rollout_only_and_beside_one_that_always_listens() -> None:
    trainer, always, once = quiet_trainer(16, 32), [], []
    trainer.source.listen(lambda step, info: always.append(step))
    assert trainer._collect_rollout(lambda step, info: once.append(step))
    trainer.learner.take()
    trainer.progress.stage = 1
    trainer.advance()
    assert (len(once), len(always)) == (16, 16)
    trainer.advance()
    assert (len(once), len(always)) == (16, 32)


def test_statistics_of_ones_own_can_be_kept_by_overriding_it() -> None:
    class Counts(Trainer):
        def _collect_rollout(self, on_step: Any = None) -> bool:
            rewards: list[torch.Tensor] = []
            is_full = super()._collect_rollout(lambda step, info: rewards.append(step["reward"].sum()))
            self.stats.set_stat("mine/total_reward", float(torch.stack(rewards).sum()))
            return is_full

    writer = SummaryWriter()
    policy, env, algorithm = parts()
    trainer = Counts(policy, env, algorithm, 16, 32, writer, writers=[])
    trainer.train(64)
    [(_, value, step)] = [each for each in writer.scalars if each[0] == "mine/total_reward"]
    assert step == 64
    assert value == pytest.approx(float(trainer.taken.rollout["reward"][:, :-1].sum()), rel=1e-5)


def test_log_train_puts_losses_into_the_row_of_this_cycle() -> None:
    class Adds(Trainer):
        def _log_train(self, losses: Any) -> None:
            super()._log_train({**losses, "my_loss": 0.25, "mine/other": 4.0})

    writer = SummaryWriter()
    trainer = Adds(*parts(), 16, 32, writer, writers=[])
    trainer.train(64)
    row = {tag: value for tag, value, _ in writer.scalars}
    assert row["train/my_loss"] == 0.25
    assert row["mine/other"] == 4.0
    assert "train/value_loss" in row


def test_eval_once_evaluates_now_and_reports_it() -> None:
    trainer = quiet_trainer(16, 32, eval_env=PointMass(2), num_eval_episodes=4)
    metrics = trainer._eval_once()
    assert metrics is not None
    assert {"eval/mean_reward", "eval/mean_ep_length", "eval/success_rate", "eval/metrics/distance"} <= set(metrics)
    assert trainer.records.num_eval_episodes == 4
    trainer._eval_once(6)
    assert trainer.records.num_eval_episodes == 6
    with pytest.raises(SettingsError, match="it cannot evaluate"):
        quiet_trainer(16, 32)._eval_once()


def test_eval_once_is_what_a_due_evaluation_calls() -> None:
    class Counts(Trainer):
        num_evaluations = 0

        def _eval_once(self, *args: Any, **keywords: Any) -> Any:
            self.num_evaluations += 1
            return super()._eval_once(*args, **keywords)

    trainer = Counts(*parts(), 16, 32, None, 64, eval_env=PointMass(2), writers=[])
    trainer.train(192)
    assert trainer.num_evaluations == 3


def test_eval_freq_zero_means_never() -> None:
    trainer = quiet_trainer(16, 32, eval_env=PointMass(2), eval_freq=0)
    assert trainer.eval_env is None


def test_save_freq_checkpoint_dir_and_exp_name_say_where_and_how_often(tmp_path: Path) -> None:
    for name in ("reach", "reach-2"):
        trainer = quiet_trainer(16, 32, save_freq=128, checkpoint_dir=tmp_path / "out", exp_name="reach")
        trainer.train(256)
        trainer.session.close()
        found = sorted(path.name for path in (tmp_path / "out" / name / "checkpoints").glob("0*"))
        assert found == ["000001-step-0", "000002-step-128", "000003-step-256"]


def test_without_them_nothing_is_written(tmp_path: Path) -> None:
    quiet_trainer(16, 32).train(64)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_is_chosen_by_the_metric_and_mode_that_were_asked_for(mode: str) -> None:
    trainer = quiet_trainer(
        16, 32, eval_env=PointMass(2), best_eval_metric="eval/metrics/distance", best_eval_mode=mode
    )
    first = trainer._eval_once()
    with torch.no_grad():  # a policy that drives away from the goal ends farther from it
        trainer.policy.actor[-1].bias.fill_(5.0)
        trainer.policy.actor[-1].weight.zero_()
    trainer.progress.env_steps = 64
    second = trainer._eval_once()
    assert first is not None
    assert second is not None
    is_later_larger = second["eval/metrics/distance"] >= first["eval/metrics/distance"]
    assert trainer.records.is_new_best(64) == (is_later_larger if mode == "max" else not is_later_larger)
    best = first if (mode == "max") != is_later_larger else second
    assert trainer.records.best_score == best["eval/metrics/distance"]


def test_a_metric_that_is_not_there_is_refused_with_those_that_are() -> None:
    trainer = quiet_trainer(16, 32, eval_env=PointMass(2), best_eval_metric="eval/nonsense")
    with pytest.raises(SettingsError, match=r"it gave eval/mean_reward, .*eval/success_rate"):
        trainer._eval_once()
    assert quiet_trainer(16, 32, eval_env=PointMass(2), best_eval_metric="eval/avg_reward")._eval_once() is not None
    with pytest.raises(SettingsError, match="best_mode"):
        quiet_trainer(16, 32, eval_env=PointMass(2), best_eval_mode="most")


def test_eval_seed_decides_the_starts_of_evaluation_episodes() -> None:
    def evaluated(seed: int) -> float:
        policy_and_more = ("ppo", "CartPole-v1")
        trainer = Trainer(*policy_and_more, eval_seed=seed, num_eval_episodes=3, writers=[], seed=4)
        metrics = trainer._eval_once()
        assert metrics is not None
        return metrics["eval/mean_reward"]

    assert evaluated(1) == evaluated(1)
    assert len({evaluated(seed) for seed in range(4)}) > 1


def test_events_of_the_environments_come_from_event_cfg_and_eval_event_cfg() -> None:
    calls: list[str] = []
    trainer = quiet_trainer(
        16,
        32,
        eval_env=PointMass(2),
        event_cfg={
            "train": {"func": lambda env, lanes: calls.append("train"), "mode": "interval", "interval_step": 16}
        },
        eval_event_cfg={"eval": {"func": lambda env, lanes: calls.append("eval"), "mode": "step"}},
    )
    trainer.advance()
    assert calls == ["train"]
    trainer._eval_once()
    assert set(calls[1:]) == {"eval"}


def test_a_writer_may_be_one_of_ours_and_anything_else_is_refused() -> None:
    writer = Keeps()
    assert quiet_trainer(16, 32, writer).writer is writer
    with pytest.raises(SettingsError, match="writer slot got a int"):
        quiet_trainer(16, 32, 3)


def test_what_has_no_effect_is_reported_once() -> None:
    writer = Keeps()
    policy, env, _ = parts()
    trainer = Trainer(
        policy, env, "a2c", 16, 32, writer, 10, 20, distributed=True, eval_env=PointMass(2), writers=[]
    )  # fmt: skip
    trainer.session.show_header()
    said = "\n".join(writer.notes)
    assert said.count("batch_size has no effect") == 1
    assert said.count("distributed, rank and world_size have no effect") == 1
    assert "eval_freq 10 is in environment steps and less than one update has (64)" in said
    assert "save_freq 20 is in environment steps and less than one update has (64)" in said


def test_use_wandb_adds_the_writer_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []
    monkeypatch.setattr(
        slots, "make_writers", lambda run_file: wanted.extend(w.type for w in run_file.run.writers) or []
    )
    quiet_trainer(16, 32, use_wandb=True)
    assert wanted == ["none", "wandb"], "beside it, writers=[] leaves the defaults out"


def test_evaluating_in_the_training_environment_is_refused() -> None:
    policy, env, algorithm = parts()
    with pytest.raises(SettingsError, match="the training environment itself"):
        Trainer(policy, env, algorithm, 16, 32, eval_env=env)


def test_every_parameter_of_the_constructor_is_understood() -> None:
    given = {
        "buffer_size": 16, "batch_size": 32, "writer": SummaryWriter(), "eval_freq": 64, "save_freq": 0,
        "checkpoint_dir": "out", "exp_name": "all", "use_wandb": False, "eval_env": PointMass(2), "event_cfg": {},
        "eval_event_cfg": {}, "num_eval_episodes": 5, "distributed": False, "rank": 0, "world_size": 1, "eval_seed": 3,
        "best_eval_metric": "eval/avg_reward", "best_eval_mode": "max",
    }  # fmt: skip
    assert tuple(given) == PARAMETERS
    policy, env, algorithm = parts()
    trainer = Trainer(policy, env, algorithm, *given.values())
    trainer.train(128)
    assert trainer.global_step == 128
    trainer.session.close()


def test_events_can_be_injected_through_the_manager() -> None:
    trainer, seen = quiet_trainer(16, 32), []
    trainer.event_manager.add(Every(env_steps=128), lambda trainer: seen.append(trainer.global_step))
    trainer.train(256)
    assert seen == [128, 256]


def test_names_and_settings_still_go_into_every_slot() -> None:
    trainer = Trainer(PPOSettings(num_epochs=1), "CartPole-v1", buffer_size=16, batch_size=32, events=[], writers=[])
    trainer.train(128)
    assert trainer.taken.rollout.num_steps == 16


def test_the_settings_of_a_run_are_those_of_the_policy_that_was_given() -> None:
    policy, env, algorithm = parts()
    trainer = Trainer(policy, env, algorithm, 16, 32, writers=[])
    [behavior] = trainer.session.run_file.experiment.behaviors.values()
    assert behavior.policy.hidden_sizes == (8,)
    alone = ActorOnly(ActorOnlySettings(hidden_sizes=(4,)), env.spec)
    assert alone.settings.critic_obs is None
    again = Trainer(alone, PointMass(4), "a2c", 16, writers=[])
    [behavior] = again.session.run_file.experiment.behaviors.values()
    assert (behavior.policy.type, behavior.policy.hidden_sizes) == ("actor_only", (4,))


def trained(folder: Path, *totals: int, start: Path | None = None, **changes: Any) -> Trainer:
    trainer = quiet_trainer(16, 32, None, checkpoint_dir=folder, exp_name="reach", **changes)
    if start is not None:
        trainer.load_checkpoint(start)
    for total in totals:
        trainer.train(total)
    trainer.session.close()
    return trainer


class Remembers:
    """Pushes the lanes a little more with each call, and must remember how often it did."""

    def __init__(self, cfg: Any, env: Any) -> None:
        self.num_calls = 0

    def __call__(self, env: Any, lanes: Any, rng: Any) -> None:
        self.num_calls += 1
        env.set_parameters({"gain": 0.1 + 0.01 * self.num_calls + 0.01 * rng.uniform(size=len(lanes))}, lanes)

    def state_dict(self) -> dict[str, Any]:
        return {"num_calls": self.num_calls}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_calls = state["num_calls"]


@pytest.mark.parametrize("how", ["the checkpoint", "the run"])
def test_a_run_of_ready_objects_goes_on_exactly_from_a_checkpoint(how: str, tmp_path: Path) -> None:
    events = {"event_cfg": {"gain": {"func": Remembers, "mode": "interval", "interval_step": 7}}}
    whole = trained(tmp_path / "whole", 384, **events)
    first = trained(tmp_path / "parts", 192, **events)
    saved = first.save_checkpoint() if how == "the checkpoint" else tmp_path / "parts" / "reach"
    first.session.close()
    second = trained(tmp_path / "parts", 384, start=saved, **events)
    assert second.global_step == 384
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["reach"]
    assert digest_of(second.state_dict()) == digest_of(whole.state_dict())
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts/reach/metrics.jsonl").read_text().splitlines()]
    assert steps == [64, 128, 192, 256, 320, 384]


def test_another_trainer_than_the_one_that_was_saved_is_refused(tmp_path: Path) -> None:
    saved = trained(tmp_path, 64).save_checkpoint()
    policy, env, algorithm = parts(gae_lambda=0.5)
    other = Trainer(policy, env, algorithm, 16, 32, writers=[])
    with pytest.raises(SettingsError, match=r"gae_lambda was 0\.98 in this run and is 0\.5 in this trainer") as refused:
        other.load_checkpoint(saved)
    assert refused.value.code == "E0207"
    elsewhere = quiet_trainer(16, 32, checkpoint_dir=tmp_path / "elsewhere", exp_name="other")
    elsewhere.train(64)
    with pytest.raises(RunDirectoryError, match="cannot go on in"):
        elsewhere.load_checkpoint(saved)
    elsewhere.session.close()
    with pytest.raises(CheckpointError):
        quiet_trainer(16, 32).load_checkpoint(tmp_path / "nowhere")


def test_commands_that_could_not_work_are_not_recommended(tmp_path: Path) -> None:
    trainer = trained(tmp_path, 64)
    [(command, _)] = trainer.session.summary(trainer).next_commands
    assert command.startswith("quintain checkpoints list reach")
