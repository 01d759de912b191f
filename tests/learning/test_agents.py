"""Agents that come and go learn by PPO: numbers, choices under masks, and both in one environment at once."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.settings.yaml_text import parse
from quintain.trainers.base import Trainer

pytestmark = [pytest.mark.learning, pytest.mark.timeout(600)]

TASKS = {"balance_ball": ["Ball"], "gates": ["Gate"], "ball_and_gates": ["Ball", "Gate"]}
GAMMA = {"Ball": 0.99, "Gate": 0.5}


def behavior(name: str) -> dict[str, Any]:
    return {
        "algorithm": {"type": "ppo", "batch_size": 256, "num_epochs": 8, "learning_rate": 1e-3},
        "policy": {"initial_log_std": -1.0},
        "rollout": {"buffer_size": 2048, "time_horizon": 64},
        "reward_signals": {"extrinsic": {"gamma": GAMMA[name]}},
    }


def score(trainer: Trainer, name: str) -> float:
    """Returns the mean return of the last episodes, and of gates what each decision brought."""
    episodes = trainer.learners[name].episodes
    return episodes.mean_return if name == "Ball" else episodes.mean_return / episodes.mean_length


def trained(experiment: dict[str, Any]) -> Trainer:
    """Trains without a run directory, to the end of the budget."""
    settings = RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})
    run = Run(settings, [])
    trainer = assemble(settings, run, run.writer)
    trainer.train()
    return trainer


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", TASKS)
def test_reaches_its_score(task: str, seed: int) -> None:
    env = {"type": "agents", "id": f"quintain.envs.agents.tasks:{task}"}
    experiment = {"seed": seed, "budget": {"env_steps": 60_000}, "env": env}
    settings = RunFile.from_mapping(
        {
            "experiment": {**experiment, "behaviors": {name: behavior(name) for name in TASKS[task]}},
            "run": {"writers": []},
        }
    )
    run = Run(settings, [])
    trainer = assemble(settings, run, run.writer)
    trainer.train()
    # 20.0 is never losing a ball in 200 steps, 1.0 always both the right gate and the right bell.
    wanted = {"Ball": 18.0, "Gate": 0.95}
    for name in TASKS[task]:
        assert score(trainer, name) >= wanted[name], name


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("algorithm", ["ppo", "poca"])
@pytest.mark.parametrize("task", ["balance_ball", "gates"])
def test_two_streams_learn_what_one_does(task: str, algorithm: str, seed: int) -> None:
    """A little is paid for unlikely actions, by a shorter horizon that no end cuts."""
    [name] = TASKS[task]
    learned = behavior(name)
    learned["algorithm"] |= {"type": algorithm, "clip_value": None, "reward_streams": "averaged"}
    if algorithm == "poca":
        learned["policy"] |= {"type": "actor_only"}
    surprise = {"type": "tests.algorithms.stream_signals:Surprise", "gamma": 0.8, "strength": 0.01}
    learned["reward_signals"]["surprise"] = surprise
    env = {"type": "agents", "id": f"quintain.envs.agents.tasks:{task}"}
    experiment = {
        "seed": seed,
        "budget": {"env_steps": 60_000 if task == "balance_ball" else 36_000},
        "env": env,
        "behaviors": {name: learned},
    }
    trainer = trained(experiment)
    assert score(trainer, name) >= {"Ball": 18.0, "Gate": 0.95}[name]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_walkers_of_a_parallel_game_learn_to_meet(seed: int) -> None:
    env = {"type": "agents", "id": "tests.envs.agents.games:Meeting", "kwargs": {"length": 20}, "num_lanes": 8}
    learned = {**behavior("Ball"), "reward_signals": {"extrinsic": {"gamma": 0.9}}}
    learned["rollout"] = {"buffer_size": 1024, "time_horizon": 32}
    experiment = {"seed": seed, "budget": {"env_steps": 30_000}, "env": env, "behaviors": {"default": learned}}
    trainer = trained(experiment)
    # Untrained walkers lose more than 20 in 20 steps, most of it by leaving the line.
    assert trainer.learners["walker"].episodes.mean_return >= -5.0
    # The judge is to say yes at each of 20 steps.
    assert trainer.learners["evaluate_minibatch"].episodes.mean_return >= 19.0


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("task", ["balance_ball", "gates"])
def test_numbers_and_choices_are_learned_by_poca(task: str, seed: int) -> None:
    """Balls are groups of one; gates two groups of six, in which each agent is credited with what all of them get."""
    [name] = TASKS[task]
    learned = behavior(name)
    # Returns of six agents are too large for values that move by 0.2 in an update.
    learned["algorithm"] |= {"type": "poca", "clip_value": None}
    env = {"type": "agents", "id": f"quintain.envs.agents.tasks:{task}"}
    budget = {"env_steps": 60_000 if task == "balance_ball" else 36_000}
    experiment = {"seed": seed, "budget": budget, "env": env, "behaviors": {name: learned}}
    trainer = trained(experiment)
    assert score(trainer, name) >= {"Ball": 18.0, "Gate": 0.95}[name]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_agents_of_a_parallel_game_learn_to_share_out_landmarks(seed: int) -> None:
    env = {"type": "agents", "id": "quintain.envs.agents.spread:Spread", "num_lanes": 16}
    learned = {**behavior("Ball"), "reward_signals": {"extrinsic": {"gamma": 0.95}}}
    learned["algorithm"] = {**learned["algorithm"], "entropy_coef": 0.01}
    experiment = {"seed": seed, "budget": {"env_steps": 200_000}, "env": env, "behaviors": {"agent": learned}}
    trainer = trained(experiment)
    # Untrained agents leave landmarks about half of the plane away, -13 in 25 steps; the way there alone costs about 3.
    assert trainer.learners["agent"].episodes.mean_return >= -5.5


FILE = """\
behaviors:
  Ball:
    trainer_type: ppo
    hyperparameters: {batch_size: 64, buffer_size: 2048, learning_rate: 0.0003, num_epoch: 3, lambd: 0.99, beta: 0.001}
    network_settings: {normalize: true, hidden_units: 128, num_layers: 2}
    max_steps: 100000
    time_horizon: 1000
    threaded: THREADED
"""


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("is_threaded", [False, True])
def test_a_file_of_the_other_package_learns(is_threaded: bool, seed: int) -> None:
    text = FILE.replace("THREADED", "true" if is_threaded else "false")
    typed = CommandLine(env="quintain.envs.agents.tasks:balance_ball", seed=seed)
    settings = translate(check_configuration(parse(text, "ball.yaml")), typed).run_file
    run = Run(settings, [])
    trainer = assemble(settings, run, run.writer)
    trainer.train()
    trainer.close()
    assert score(trainer, "Ball") >= 19.0
