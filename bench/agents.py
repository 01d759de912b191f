"""Counts the steps of agents that are collected and learned from in a second of one core's time, where steps are free.

    python bench/agents.py

ML-Agents' own trainer collects about 7,500 and learns from about 3,600 agent-steps a second on one core, with 12 agents
as with 256; `docs/decisions/0020-trajectories-of-agents.md` and `0021-groups-of-agents.md` have what this printed.
"""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import torch

from quintain.assemble import assemble
from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.run import Run
from quintain.settings.tree import RunFile
from quintain.trainers.joint import JointTrainer

NUM_WARM, NUM_TIMED = 2, 10


class Free:
    """Agents in groups of four that see 8 numbers, choose 2, and are replaced after 200 steps; nothing is computed."""

    def __init__(self, num_agents: int, max_age: int = 200, group_size: int = 4) -> None:
        self.spec = BehaviorSpec([ObservationSpec((8,))], ActionSpec.create_continuous(2))
        self.behavior_specs = {"Free": self.spec}
        self.obs = np.random.default_rng(0).normal(size=(num_agents, 8)).astype(np.float32)
        self.reward = np.ones(num_agents, np.float32)
        self.ids = np.arange(num_agents, dtype=np.int32)
        self.age = np.arange(num_agents) % max_age
        self.max_age, self.num_met = max_age, num_agents
        self.ended = TerminalSteps.empty(self.spec)
        self.group = 1 + np.arange(num_agents) // group_size

    def reset(self) -> None: ...
    def close(self) -> None: ...
    def set_actions(self, behavior_name: str, action: Any) -> None: ...

    def step(self) -> None:
        self.age += 1
        old = np.flatnonzero(self.age >= self.max_age)
        cut = np.zeros(len(old), np.bool_)
        self.ended = TerminalSteps([self.obs[old]], self.reward[old], cut, self.ids[old], self.group[old])
        self.ids[old] = np.arange(self.num_met, self.num_met + len(old))
        self.num_met += len(old)
        self.age[old] = 0

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        return DecisionSteps([self.obs], self.reward, self.ids, None, self.group), self.ended


def make(num_agents: int, algorithm: str) -> JointTrainer:
    """Makes a trainer with the settings of ML-Agents' example of balancing balls."""
    behavior = {
        "algorithm": {"type": algorithm, "batch_size": 64, "num_epochs": 3},
        "policy": {"hidden_sizes": [128, 128], "activation": "silu", "normalize_obs": True},
        "rollout": {"buffer_size": 12_000, "time_horizon": 1000},
    }
    env = {"type": "agents", "id": "agents:Free", "kwargs": {"num_agents": num_agents}}
    experiment = {"budget": {"env_steps": 10**9}, "env": env, "behaviors": {"Free": behavior}}
    settings = RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})
    run = Run(settings, [])
    trainer = assemble(settings, run, run.writer)
    assert isinstance(trainer, JointTrainer)
    return trainer


def rates(num_agents: int, algorithm: str) -> dict[str, float | str]:
    """Returns agent-steps in a second of this process's time, collected only and learned from."""
    trainer = make(num_agents, algorithm)
    [learner] = trainer.trainers.values()
    measured = {}
    for what in ("collected", "learned"):
        for number in range(NUM_WARM + NUM_TIMED):
            if number == NUM_WARM:
                num_steps, started = 0, time.process_time()
            if what == "collected":
                learner._stage_collect()
            else:
                trainer.advance()
            num_steps = num_steps + learner.taken.num_valid if number >= NUM_WARM else 0
        measured[what] = round(num_steps / (time.process_time() - started))
    return {"algorithm": algorithm, "agents": num_agents, **measured}


if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in ("ppo", "poca"):
        for count in (12, 256):
            print(json.dumps(rates(count, chosen)), flush=True)
