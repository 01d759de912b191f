"""ML-Agents' names train through the core's stages: hooks of a user's own, and PPO with the core's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.optimizer import Optimizer
from quintain.behaviors import (
    AgentBuffer,
    BaseModelSaver,
    BufferKey,
    ObservationKeyPrefix,
    POCATrainer,
    PPOTrainer,
    RLTrainer,
    SACTrainer,
    SimpleEnvManager,
    StatsWriter,
    TrainerController,
    TrainerFactory,
    Trajectory,
)
from quintain.behaviors.trainer_settings import PPOSettings, PPOTrainerSettings, TrainerSettings
from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.core.budget import Budget
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.envs.agents.boundary import core_spec
from quintain.envs.agents.group_tasks import door
from quintain.envs.agents.tasks import ball_and_gates, gates
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import parse
from tests.behaviors.runs import make

SETTINGS = PPOTrainerSettings(
    hyperparameters=PPOSettings(batch_size=32, buffer_size=96, num_epoch=2), max_steps=400, time_horizon=16
)


class Reinforce(RLTrainer):
    """Makes what brought more than usual more likely: all that a user has to write."""

    def create_policy(self, parsed_behavior_id: str, behavior_spec: Any) -> ActorCritic:
        settings = ActorCriticSettings(hidden_sizes=(16,), compiled=False)
        return ActorCritic(settings, core_spec(self.brain_name, behavior_spec), Rng(0).child("policy"))

    def create_optimizer(self) -> Optimizer:
        return Optimizer(self.policy.named_parameters(), eps=1e-8, max_grad_norm=None)

    def _process_trajectory(self, trajectory: Trajectory) -> None:
        super()._process_trajectory(trajectory)
        self._append_to_update_buffer(trajectory.to_agentbuffer())

    def _is_ready_update(self) -> bool:
        return self.update_buffer.num_experiences >= 96

    def _update_policy(self) -> bool:
        column = {key: torch.from_numpy(field.to_ndarray().copy()) for key, field in self.update_buffer.items()}
        reward = column[BufferKey.ENVIRONMENT_REWARDS]
        judged = self.policy.evaluate_actions(
            {
                f.OBS: column[ObservationKeyPrefix.OBSERVATION, 0],
                f.ACTION: column[BufferKey.DISCRETE_ACTION].long(),
                f.ACTION_MASK: column[BufferKey.ACTION_MASK].bool(),
            }
        )
        self.optimizer.step(-(judged[f.LOG_PROB] * (reward - reward.mean())).mean(), 0.02)
        self._clear_update_buffer()
        return True


def controller(folder: Path, config: dict[str, TrainerSettings], **changes: Any) -> TrainerController:
    factory = TrainerFactory(config, str(folder), seed=5, **changes)
    return TrainerController(factory, str(folder), "run", training_seed=5)


def test_hooks_of_a_users_own_train(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"max_steps": 6000})
    control = controller(tmp_path, {"Gate": settings}, trainer_classes={"Gate": Reinforce})
    summary = control.start_learning(SimpleEnvManager(gates(seed=1)))
    trainer = control.trainers["Gate"]
    assert summary.env_steps >= 6000
    assert trainer.get_step == summary.env_steps == trainer.policies["Gate"].get_current_step()
    # A guess brings 0.42 a step; both always right 1.
    assert trainer.episodes.mean_return / trainer.episodes.mean_length > 0.6
    assert not trainer.should_still_train
    assert trainer.policy_queues[0].get_nowait() is trainer.policies["Gate"]


def test_hooks_are_resumed_exactly(tmp_path: Path) -> None:
    states = []
    for name, stops in (("whole", [10]), ("cut", [3, 7])):
        for i, num_updates in enumerate(stops):
            control = controller(
                tmp_path / name, {"Gate": SETTINGS}, trainer_classes={"Gate": Reinforce}, load_model=i > 0
            )
            joint = control.prepare(SimpleEnvManager(gates(seed=1)))
            joint.set_budget(Budget(10_000))
            for _ in range(num_updates):
                joint.advance()
            joint.save_checkpoint()
            control.resources.close()
        states.append(joint.state_dict()["training"])
    assert [found for found in differences(*states) if "budget" not in found] == []


@pytest.mark.parametrize("threaded", ["false", "true"])
@pytest.mark.parametrize("trainer_type", ["ppo", "sac", "poca"])
def test_algorithms_by_their_names_are_those_of_the_core(trainer_type: str, threaded: str, tmp_path: Path) -> None:
    numbers = {
        "ppo": "{batch_size: 32, buffer_size: 96, num_epoch: 2}",
        "poca": "{batch_size: 32, buffer_size: 96, num_epoch: 2}",
        "sac": "{batch_size: 32, buffer_size: 300, steps_per_update: 16, buffer_init_steps: 60}",
    }
    text = f"""\
default_settings:
  trainer_type: {trainer_type}
  hyperparameters: {numbers[trainer_type]}
  network_settings: {{hidden_units: 16}}
  max_steps: 400
  time_horizon: 16
  threaded: {threaded}
env_settings: {{seed: 5}}
"""
    request = translate(check_configuration(parse(text, "a.yaml")), CommandLine(env="a:b"))
    made = door if trainer_type == "poca" else ball_and_gates
    env = {"id": f"{made.__module__}:{made.__name__}", "kwargs": {"seed": 1}}
    run_file = request.run_file.replace("experiment.env", {"type": "agents", **env}).replace("run.writers", [])
    core = make(run_file)
    settings = check_configuration(parse(text, "a.yaml")).options.default_settings
    assert settings is not None
    control = controller(tmp_path, {"default": settings})
    control.start_learning(SimpleEnvManager(made(seed=1)))
    core.train()
    for name, trainer in control.trainers.items():
        assert type(trainer) is {"ppo": PPOTrainer, "poca": POCATrainer, "sac": SACTrainer}[trainer_type]
        expected = core.learners[name]
        assert trainer.progress.env_steps == expected.progress.env_steps
        assert list(differences(expected.policy.state_dict(), trainer.policy.state_dict())) == []
        assert list(trainer.episodes.returns) == list(expected.episodes.returns)
    core.close()


def test_trajectories_can_come_from_anywhere_and_an_empty_queue_is_no_fault() -> None:
    trainer = Reinforce("Gate", SETTINGS, True, False, "")
    trainer.add_policy("Gate", trainer.create_policy("Gate", gates().behavior_specs["Gate"]))
    assert not trainer.advance(), "there is nothing to learn from, and nobody to ask"
    from quintain.behaviors import AgentManagerQueue

    queue: AgentManagerQueue[Trajectory] = AgentManagerQueue("Gate")
    trainer.subscribe_trajectory_queue(queue)
    assert not trainer.advance()
    before = trainer.policies["Gate"].get_weights()
    for number in range(12):
        queue.put(trajectory(trainer, length=8, agent=number))
    assert trainer.advance()
    assert (trainer.get_step, trainer.progress.env_steps, trainer.progress.updates) == (96, 96, 1)
    assert queue.empty()
    assert any((old != new).any() for old, new in zip(before, trainer.policies["Gate"].get_weights(), strict=True))
    # Eight rewards of 1 and as many of the group's.
    assert list(trainer.reward_buffer) == [16.0]


def trajectory(trainer: RLTrainer, length: int, agent: int) -> Trajectory:
    spec = trainer.policy.spec
    column = np.ones(length, np.float32)
    fields = {
        f.OBS: np.random.default_rng(agent).normal(size=(length, 4)).astype(np.float32),
        f.ACTION: np.zeros((length, 2), np.int64),
        f.ACTION_MASK: np.ones((length, 5), np.bool_),
        **{name: column * (i + 1) for i, name in enumerate((f.LOG_PROB, f.VALUE))},
        f.REWARD: column * np.arange(length) / np.arange(length).sum() * length,
        "group_reward": column,
    }
    ends = {"done_reached": True, "interrupted": False, "begins_episode": True}
    return Trajectory("Gate", spec, fields, [np.zeros(4, np.float32)], agent_id=agent, **ends)


def test_statistics_go_to_writers_of_a_users_own() -> None:
    class Kept(StatsWriter):
        def __init__(self) -> None:
            self.rows: list[tuple[str, dict[str, float], int]] = []

        def write_stats(self, category: str, values: Any, step: int) -> None:
            self.rows.append((category, {key: value.aggregated_value for key, value in values.items()}, step))

    trainer, writer = Reinforce("Gate", SETTINGS, True, False, ""), Kept()
    trainer.stats_reporter.add_writer(writer)
    trainer.stats_reporter.add_stat("a", 1.0)
    trainer.stats_reporter.add_stat("a", 3.0)
    trainer.stats_reporter.set_stat("b", 5.0)
    trainer.stats_reporter.set_stat("b", 6.0)
    assert trainer.stats_reporter.get_stats_summaries("a").std == 1.0
    trainer.stats_reporter.write_stats(7)
    trainer.stats_reporter.write_stats(8)
    assert writer.rows == [("Gate", {"a": 2.0, "b": 6.0}, 7), ("Gate", {}, 8)]


def test_a_class_without_its_hooks_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        RLTrainer("Gate", SETTINGS, True, False, "")  # type: ignore[abstract]


def test_a_buffer_that_nobody_empties_is_bounded_and_counts_what_it_drops() -> None:
    buffer, target = AgentBuffer(), AgentBuffer(max_length=10)
    buffer[BufferKey.DONE].set(np.arange(7.0))
    for _ in range(3):
        buffer.resequence_and_append(target)
    assert target.num_experiences == 10
    assert target.num_dropped == 11
    assert target[BufferKey.DONE].to_ndarray().tolist() == [4.0, 5.0, 6.0, *range(7)]


def test_summaries_and_savers_of_a_users_own_come_at_their_intervals() -> None:
    class Saver(BaseModelSaver):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def register(self, module: Any) -> None: ...
        def initialize_or_load(self, policy: Any = None) -> None: ...
        def save_checkpoint(self, behavior_name: str, step: int) -> tuple[str, list[str]]:
            self.steps.append(step)
            return "", []

    class Kept(StatsWriter):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def write_stats(self, category: str, values: Any, step: int) -> None:
            self.steps.append(step)

    settings = SETTINGS.model_copy(update={"summary_freq": 20, "checkpoint_interval": 48})
    trainer, writer = Reinforce("Gate", settings, True, False, ""), Kept()
    trainer.model_saver = saver = Saver()
    trainer.stats_reporter.add_writer(writer)
    trainer.add_policy("Gate", trainer.create_policy("Gate", gates().behavior_specs["Gate"]))
    for number in range(12):
        trainer._process_trajectory(trajectory(trainer, length=8, agent=number))
    # Before the trajectory that would reach the boundary: at 16 for 20, at 32 for 40, and so on.
    assert writer.steps == [20, 40, 60, 80]
    assert saver.steps == [40, 88]


def test_a_run_can_be_trained_for_longer_after_it_ended(tmp_path: Path) -> None:
    for load_model, max_steps in ((False, 100), (True, 300)):
        settings = SETTINGS.model_copy(update={"max_steps": max_steps})
        control = controller(tmp_path, {"Gate": settings}, trainer_classes={"Gate": Reinforce}, load_model=load_model)
        summary = control.start_learning(SimpleEnvManager(gates(seed=1)))
    assert 300 <= summary.env_steps < 500


def test_settings_of_a_run_name_the_classes_that_trained(tmp_path: Path) -> None:
    control = controller(tmp_path, {"default": SETTINGS}, trainer_classes={"Gate": Reinforce})
    control.start_learning(SimpleEnvManager(ball_and_gates(seed=1)))
    behaviors = RunFile.load(tmp_path / "run" / "config.yaml").to_dict()["experiment"]["behaviors"]
    assert behaviors["Gate"]["trainer"]["class_name"] == f"{__name__}:Reinforce"
    assert behaviors["Gate"]["algorithm"]["type"] == "quintain.behaviors.hooks:HookAlgorithm"
    assert behaviors["Gate"]["algorithm"]["hyperparameters"]["buffer_size"] == 96
    assert behaviors["Ball"]["trainer"]["class_name"] == "quintain.behaviors.algorithm_trainer:PPOTrainer"
    assert behaviors["Ball"]["algorithm"]["type"] == "ppo"


@pytest.mark.parametrize("threaded", [False, True])
def test_only_hooks_of_a_users_own_see_trajectories_as_objects(
    threaded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seeing(PPOTrainer):
        def _process_trajectory(self, trajectory: Trajectory) -> None:
            super()._process_trajectory(trajectory)
            seen.append(len(trajectory))

    seen: list[int] = []
    config = {"Gate": SETTINGS.model_copy(update={"threaded": threaded})}
    watched = controller(tmp_path / "seeing", config, trainer_classes={"ppo": Seeing})
    watched.start_learning(SimpleEnvManager(gates(seed=1)))
    assert sum(seen) == watched.trainers["Gate"].get_step
    monkeypatch.setattr(Trajectory, "__init__", None)
    plain = controller(tmp_path / "plain", config)
    plain.start_learning(SimpleEnvManager(gates(seed=1)))
    ours, theirs = plain.trainers["Gate"], watched.trainers["Gate"]
    assert ours.get_step == theirs.get_step == ours.policies["Gate"].get_current_step()
    assert ours.reward_buffer == theirs.reward_buffer
    # Beside acting, a subclass values the ends of its trajectories with the weights that learn.
    same = list(differences(ours.policy.state_dict(), theirs.policy.state_dict())) == []
    assert same or threaded
