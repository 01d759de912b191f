"""Small run files, one for each thing that can be registered; a new name without a case fails its contract's test."""

from __future__ import annotations

from typing import Any

from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.trainers import Trainer

ENVS: dict[str, dict[str, Any]] = {
    "gym lanes, choices": {"type": "gym", "id": "CartPole-v1", "max_episode_steps": 15},
    "gym lanes, numbers": {"type": "gym", "id": "Pendulum-v1", "max_episode_steps": 15},
    "gym native": {"type": "gym", "id": "CartPole-v1", "vectorization": "native", "max_episode_steps": 15},
    "native, choices": {"type": "native", "id": "CartPole-v1", "max_episode_steps": 15},
    "native, numbers": {"type": "native", "id": "Pendulum-v1", "max_episode_steps": 15},
    "corridor": {"type": "corridor"},
    "scenario": {
        "type": "scenario",
        "hyper_params": {
            "scenario": "find_the_plus",
            "trainer": "vanilla_ppo",
            "dataset": "generated",
            "interaction_protocol": "adp",
        },
    },
}
STATISTICAL: dict[str, dict[str, Any]] = {"envpool": {"type": "envpool", "id": "Fake-v0"}}
"""Environments whose state cannot be saved; they say so, and a resume starts new episodes."""
ALGORITHMS = (
    "ppo",
    "online_ppo",
    "a2c",
    "grpo",
    "reinforce",
    "sac",
    "td3",
    "dqn",
    "my_reinforce",
    "team_ppo",
    "team_reinforce",
    "loss_module",
)
REPLAYING = ("sac", "td3", "dqn")
"""Algorithms that learn from replay."""
AGENT_ALGORITHMS = ("poca",)
"""Algorithms for groups of agents, which have no lanes."""
TEAMS = ("team_ppo", "team_reinforce", "loss_module")
"""Algorithms for teams of agents in a scenario."""
GROUPLESS = {"gym native"}
"""Environments that cannot start lanes alike."""
NUM_LANES, NUM_STEPS = 4, 32


def fits(algorithm: str, env: str) -> bool:
    """Whether an algorithm can learn in an environment: some have discrete or continuous actions only."""
    if algorithm in TEAMS or env == "scenario":
        return algorithm in TEAMS and env == "scenario"
    is_continuous = env.endswith("numbers")
    if algorithm == "grpo":
        return env not in GROUPLESS
    return {"dqn": not is_continuous, "td3": is_continuous}.get(algorithm, True)


def run_file(env: dict[str, Any] | None = None, algorithm: str = "ppo", cycles: int = 3, **behavior: Any) -> RunFile:
    chosen: dict[str, Any] = {"type": algorithm}
    if algorithm in ("ppo", "online_ppo", "grpo", "team_ppo", "loss_module"):
        chosen |= {"batch_size": 48, "num_epochs": 2}
    rollout: dict[str, Any] = {"num_steps": NUM_STEPS}
    if algorithm in REPLAYING:
        # As many cycles, and few gradient steps in each: the ring is full in the third, and has returns over two steps.
        chosen |= {"batch_size": 48, "updates_per_step": 0.05, "learning_starts": 10}
        rollout |= {"buffer_size": 300, "num_return_steps": 2}
        behavior = {"policy": {"hidden_sizes": [16, 16]}, **behavior}
    if algorithm in TEAMS:
        behavior = {"policy": {"type": "team", "agents": ["prover", "verifier"], "hidden_sizes": [8, 8]}, **behavior}
    own = {"td3": "gym lanes, numbers", **dict.fromkeys(TEAMS, "scenario")}.get(algorithm, "gym lanes, choices")
    env = {"num_lanes": NUM_LANES, **(env or ENVS[own])}
    if algorithm == "grpo":
        chosen["kl_coef"] = 0.1
        env["group_size"] = 2
    return RunFile.from_mapping(
        {
            "experiment": {
                "seed": 5,
                "budget": {"env_steps": cycles * NUM_LANES * NUM_STEPS},
                "env": env,
                "behaviors": {"default": {"algorithm": chosen, "rollout": rollout, "events": [], **behavior}},
            },
            "run": {"writers": []},
        }
    )


def agents_file(algorithm: str = "poca", env_steps: int = 300) -> RunFile:
    """Returns a run of groups of agents that come and go."""
    behavior = {
        "algorithm": {"type": algorithm, "batch_size": 48, "num_epochs": 2, "embedding_size": 8},
        "policy": {"hidden_sizes": [8]},
        "rollout": {"buffer_size": 96, "time_horizon": 4},
    }
    env = {"type": "agents", "id": "quintain.envs.agents.group_tasks:door", "kwargs": {"num_groups": 3}}
    experiment = {"seed": 5, "budget": {"env_steps": env_steps}, "env": env, "behaviors": {"Door": behavior}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def make_trainer(settings: RunFile) -> Trainer:
    run = Run(settings, [])
    return assemble(settings, run, run.writer)
