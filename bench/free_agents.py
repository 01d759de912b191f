"""Agents whose environment computes nothing, for either library, and the one trainer file that both are run by.

Needs nothing but numpy before one of the two is asked for, because it runs in the interpreters of both.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

NAME = "Free"
NUM_SEEN, NUM_NUMBERS, GROUP_SIZE, MAX_AGE = 8, 2, 4, 200
BUFFER_SIZE = 12_000

FILE = """\
behaviors:
  Free:
    trainer_type: TRAINER
    hyperparameters:
      batch_size: 64
      buffer_size: BUFFER
      learning_rate: 0.0003
      beta: 0.001
      epsilon: 0.2
      lambd: 0.99
      num_epoch: 3
    network_settings: {normalize: true, hidden_units: 128, num_layers: 2}
    reward_signals: {extrinsic: {gamma: 0.99, strength: 1.0}}
    max_steps: 1000000000
    time_horizon: 1000
    summary_freq: 100000000
    checkpoint_interval: 1000000000
    threaded: false
"""
"""The settings of ML-Agents' example of balancing balls, without its summaries and checkpoints."""


MEMORY = "_memory"
"""How the name of a trainer ends whose policy remembers: by an LSTM of 64, in sequences of 64 steps."""


def trainer_file(trainer_type: str) -> str:
    """Returns the file for `ppo`, `ppo_memory` or `poca`."""
    file = FILE.replace("TRAINER", trainer_type.removesuffix(MEMORY)).replace("BUFFER", str(BUFFER_SIZE))
    if not trainer_type.endswith(MEMORY):
        return file
    # ML-Agents counts both halves of an LSTM's state.
    return file.replace("num_layers: 2}", "num_layers: 2, memory: {memory_size: 128, sequence_length: 64}}")


def arguments(num_agents: int, trainer_type: str) -> dict[str, Any]:
    """Returns what an environment for that trainer is made of."""
    return {"num_agents": num_agents}


class Free:
    """Agents in groups of four that see 8 numbers, choose 2, and are replaced after 200 steps."""

    def __init__(self, num_agents: int, specs: ModuleType, steps: ModuleType) -> None:
        """Makes the agents of one library, by its modules of specs and of steps."""
        self.steps = steps
        self.spec = self.make_spec(specs)
        self.behavior_specs = {NAME: self.spec}
        random = np.random.default_rng(0)
        self.obs = [self.draw(random, (num_agents, *each.shape)) for each in self.spec.observation_specs]
        self.reward = np.ones(num_agents, np.float32)
        self.nothing = np.zeros(num_agents, np.float32)
        self.ids = np.arange(num_agents, dtype=np.int32)
        self.age = np.arange(num_agents) % MAX_AGE
        self.num_met = num_agents
        self.num_decisions = 0
        self.group = (1 + np.arange(num_agents) // GROUP_SIZE).astype(np.int32)
        self.ended = self._ends(np.zeros(0, np.int64))

    def make_spec(self, specs: ModuleType) -> Any:
        """Returns what agents see and do, made of one library's classes."""
        seen = specs.ObservationSpec(
            (NUM_SEEN,), (specs.DimensionProperty.NONE,), specs.ObservationType.DEFAULT, "numbers"
        )
        return specs.BehaviorSpec([seen], specs.ActionSpec.create_continuous(NUM_NUMBERS))

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> Any:
        """Returns what all agents see for ever."""
        return random.normal(size=shape).astype(np.float32)

    def reset(self) -> None: ...
    def close(self) -> None: ...
    def set_actions(self, behavior_name: str, action: Any) -> None: ...

    def step(self) -> None:
        self.num_decisions += len(self.ids)
        self.age += 1
        old = np.flatnonzero(self.age >= MAX_AGE)
        self.ended = self._ends(old)
        # Not in place: who was given the ids before may keep them.
        self.ids = self.ids.copy()
        self.ids[old] = np.arange(self.num_met, self.num_met + len(old))
        self.num_met += len(old)
        self.age[old] = 0

    def _ends(self, who: Any) -> Any:
        was_cut = np.zeros(len(who), np.bool_)
        columns = (self.reward[who], was_cut, self.ids[who], self.group[who], self.nothing[who])
        return self.steps.TerminalSteps([each[who] for each in self.obs], *columns)

    def get_steps(self, behavior_name: str) -> tuple[Any, Any]:
        decided = self.steps.DecisionSteps(self.obs, self.reward, self.ids, None, self.group, self.nothing)
        return decided, self.ended


def ours(num_agents: int) -> Free:
    """Makes agents for quintain."""
    from quintain.envs.agents import specs, steps

    return Free(num_agents, specs, steps)


def theirs(num_agents: int) -> Free:
    """Makes agents for ML-Agents."""
    from mlagents_envs import base_env

    return Free(num_agents, base_env, base_env)
