"""Groups of agents learn by POCA in runs: stopped anywhere, with memory, through ML-Agents' names and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.algorithms.poca import POCA
from quintain.behaviors import POCATrainer, SimpleEnvManager, TrainerController, TrainerFactory
from quintain.behaviors.trainer_settings import POCASettings, POCATrainerSettings
from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.core.budget import Budget
from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.envs.agents.group_tasks import door
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import parse
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, poca_file, run_file, world_of

CHANGES = {
    "plain": {},
    "scaled": {"policy": {"normalize_obs": True}},
    "kernels act": {"policy": {"compiled": True}},
    "memory": {"policy": {"memory": {"cell": "gru", "size": 4}}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_stopped_anywhere_groups_end_with_the_same_numbers(changes: dict[str, dict[str, object]]) -> None:
    # A short horizon, so that trajectories are cut while groups go on.
    assert_resumes_exactly(poca_file(400, rollout={"time_horizon": 3}, **changes), stop_after_steps=[1, 7, 13])


def test_a_fresh_trainer_that_loads_a_state_goes_on_the_same() -> None:
    trainer, other = make(poca_file()), make(poca_file())
    for _ in range(3):
        trainer.advance()
    # Groups of four have been seen, and then the state of a beginner comes back, which has seen nobody.
    saved = trainer.state_dict()
    other.load_state_dict(saved)
    assert list(differences(saved["training"], other.state_dict()["training"])) == []
    beginning = make(poca_file()).state_dict()
    other.load_state_dict(beginning)
    assert list(differences(beginning["training"], other.state_dict()["training"])) == []


def test_groups_of_different_copies_are_different_groups() -> None:
    trainer = make(poca_file())
    collector = world_of(trainer).collectors["Door"]
    world_of(trainer).play(3, lambda: False)
    assembler = collector.assembler
    # Two copies of five groups of two to four.
    assert assembler.teammates is not None
    acting = assembler.slots.is_used
    groups, sizes = np.unique(assembler.teammates.group[acting], return_counts=True)
    assert len(groups) == 10
    assert sizes.max() <= 4
    assert assembler.steps[f.TEAMMATES].shape[2] == 3


def test_what_one_batch_keeps_of_mates_is_what_they_did() -> None:
    trainer = make(poca_file(2000))
    door_trainer = trainer.learners["Door"]
    assert door_trainer._stage_collect()
    rollout = door_trainer.taken.rollout
    seen, teammates = rollout.array(f.OBS)[:-1, 0], rollout.array(f.TEAMMATES)[:-1, 0]
    # All members of a group see the same door and the same time, and only one of them holds the key.
    others = rollout.array(f.TEAMMATE_OBS)[:-1, 0]
    assert np.array_equal(
        others[..., 1:][teammates], np.repeat(seen[:, None, 1:], teammates.shape[1], axis=1)[teammates]
    )
    assert ((others[..., 0] * teammates).sum(axis=1) + seen[:, 0]).max() == 1.0
    # Steps that stand side by side are those of one moment: what a mate is said to do is what some row says it did.
    for row in range(20):
        same = (seen[:, 1:] == seen[row, 1:]).all(axis=1)
        did = rollout.array(f.ACTION)[:-1, 0][same]
        for chosen in rollout.array(f.TEAMMATE_ACTION)[row, 0][teammates[row]]:
            assert (did == chosen).all(axis=1).any()


def test_critics_are_part_of_the_state_and_learn() -> None:
    trainer = make(poca_file())
    algorithm = trainer.learners["Door"].algorithm
    assert isinstance(algorithm, POCA)
    before = {name: value.clone() for name, value in algorithm.critic.state_dict().items()}
    trainer.advance()
    assert all(not torch.equal(before[name], value) for name, value in algorithm.critic.state_dict().items())
    assert "critic" in algorithm.state_dict()


def test_agents_without_groups_learn_by_it_too() -> None:
    changes = {"algorithm": {"type": "poca", "embedding_size": 8}, "policy": {"type": "actor_only"}}
    trainer = make(run_file("balance_ball", 300, **changes))
    trainer.train()
    assert trainer.progress.env_steps >= 300
    assert trainer.learners["Ball"].taken.rollout.array(f.TEAMMATES).shape[2] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env": {"type": "gym", "id": "CartPole-v1"}}, "poca learns for groups of agents"),
        ({"algorithm": {"type": "poca", "embedding_size": 30}}, "embedding_size"),
        ({"algorithm": {"type": "poca", "use_symmetry": True}}, "a mirrored step has no mirrored agents of its group"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, dict[str, object]], words: str) -> None:
    env = settings.get("env", {"type": "agents", "id": "quintain.envs.agents.group_tasks:door"})
    behavior = {"algorithm": settings.get("algorithm", {"type": "poca"})}
    with pytest.raises(SettingsError, match=words):
        RunFile.from_mapping({"experiment": {"env": env, "behaviors": {"Door": behavior}}})


def test_a_file_of_the_other_package_becomes_poca() -> None:
    text = """\
behaviors:
  Door:
    trainer_type: poca
    hyperparameters: {batch_size: 64, buffer_size: 512, epsilon: 0.15, lambd: 0.9}
    network_settings: {hidden_units: 32, num_layers: 1, normalize: true}
    max_steps: 1000
"""
    request = translate(check_configuration(parse(text, "a.yaml")), CommandLine(env="a:b"))
    behavior = request.run_file.experiment.behaviors["Door"]
    algorithm, policy = behavior.algorithm, behavior.policy
    assert (algorithm.type, policy.type, behavior.rollout.type) == ("poca", "actor_only", "trajectories")
    numbers = algorithm.model_dump()
    assert (numbers["clip_value"], numbers["embedding_size"]) == (numbers["clip_coef"], 32)
    assert (numbers["clip_value"]["start"], numbers["gae_lambda"]) == (0.15, 0.9)
    assert (numbers["value_coef"], numbers["baseline_coef"], numbers["max_grad_norm"]) == (0.5, 0.5, None)
    assert policy.model_dump()["hidden_sizes"] == (32,)


SETTINGS = POCATrainerSettings(
    hyperparameters=POCASettings(batch_size=32, buffer_size=96, num_epoch=2), max_steps=400, time_horizon=3
)


def test_a_trainer_by_its_name_is_resumed_exactly(tmp_path: Path) -> None:
    states = []
    for name, stops in (("whole", [6]), ("cut", [2, 4])):
        for i, num_updates in enumerate(stops):
            factory = TrainerFactory({"Door": SETTINGS}, str(tmp_path / name), seed=5, load_model=i > 0)
            control = TrainerController(factory, str(tmp_path / name), "run", training_seed=5)
            joint = control.prepare(SimpleEnvManager(door(seed=1)))
            joint.set_budget(Budget(10_000))
            for _ in range(num_updates):
                joint.advance()
            joint.save_checkpoint()
            control.resources.close()
        states.append(joint.state_dict()["training"])
    assert [found for found in differences(*states) if "budget" not in found] == []


def test_single_trajectories_say_who_stood_beside() -> None:
    class Kept(POCATrainer):
        def _process_trajectory(self, trajectory: object) -> None:
            kept.append(trajectory)
            super()._process_trajectory(trajectory)  # type: ignore[arg-type]

    kept: list = []  # type: ignore[type-arg]
    factory = TrainerFactory({"Door": SETTINGS}, "unused", seed=5, trainer_classes={"poca": Kept})
    trainer = factory.generate("Door")
    assert isinstance(trainer, POCATrainer)
    assert trainer.get_trainer_name() == "poca"
    env = door(seed=1)
    trainer.add_policy("Door", trainer.create_policy("Door", env.behavior_specs["Door"]))
    from quintain.behaviors.queues import TrajectoryQueue
    from quintain.core.rng import Rng
    from quintain.envs.agents.env import AgentEnv
    from quintain.rollouts.agent_collector import AgentCollector
    from quintain.rollouts.agent_world import AgentWorld

    world_env = AgentEnv([env])
    block = TrajectoryQueue("Door", world_env.specs["Door"], lambda: 1)
    collector = AgentCollector(trainer.policy, 3, Rng(0), lambda *played: None, f.TEAMMATE_FIELDS)
    world = AgentWorld(world_env, {"Door": collector})
    trainer.subscribe_trajectory_queue(block)
    for _ in range(12):
        with torch.inference_mode():
            world._step({"Door": block})
    trainer._drain()
    assert len(kept) > 10
    left_early = [each for each in kept if each.done_reached and each.next_group_obs]
    assert left_early, "somebody left while others went on"
    assert not any(each.all_group_dones_reached for each in left_early)
    assert any(each.all_group_dones_reached for each in kept)
    told = trainer.stats_reporter.get_stats_summaries("Environment/Group Cumulative Reward")
    assert told.num == sum(each.all_group_dones_reached for each in kept)
    # Three steps at most are in a trajectory, and an open door brings 1 in each step but the first.
    assert 0.0 <= told.mean <= 7.0
    step = next(each for each in kept if each.steps[0].group_status).steps[0]
    mate = step.group_status[0]
    assert mate.obs[0].shape == (3,)
    assert mate.action.discrete.shape == (1, 1)
    assert np.array_equal(mate.obs[0][1:], step.obs[0][1:]), "both stand before the same door"


def test_a_trajectory_that_says_nothing_of_mates_is_that_of_an_agent_alone() -> None:
    from quintain.behaviors.trajectory import Trajectory

    trainer = POCATrainer("Door", 1, SETTINGS, True, False, 5, "unused")
    trainer.add_policy("Door", trainer.create_policy("Door", door().behavior_specs["Door"]))
    one = np.ones(4, np.float32)
    fields = {
        f.OBS: np.ones((4, 3), np.float32),
        f.ACTION: np.zeros((4, 1), np.int64),
        f.ACTION_MASK: np.ones((4, 2), np.bool_),
        **dict.fromkeys((f.LOG_PROB, f.VALUE, f.REWARD, "group_reward"), one),
    }
    ends = {"done_reached": True, "interrupted": False, "begins_episode": True}
    for _ in range(24):
        made = Trajectory("Door", trainer.policy.spec, fields, [np.zeros(3, np.float32)], agent_id=1, **ends)
        trainer._process_trajectory(made)
    assert trainer._is_ready_update()
    assert trainer._update_policy()
