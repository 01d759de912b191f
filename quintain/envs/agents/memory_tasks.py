"""A small partially observed task, for trying recurrent policies out and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.tasks import Population, TaskEnv

if TYPE_CHECKING:
    from quintain.typing import Array

NUM_SIGNALS = 3


class RecallPopulation(Population):
    """Each agent sees one of three signals, then nothing for a while, and then has to name it: reward 1 if right.

    Actions before the question have no effect. A policy without memory is right one time in three.
    """

    spec = BehaviorSpec(
        [ObservationSpec((NUM_SIGNALS + 1,), name="signal, is asked")], ActionSpec.create_discrete((NUM_SIGNALS,))
    )

    def __init__(self, num_agents: int, seed: int, delay: int = 4) -> None:
        super().__init__(num_agents, seed)
        self.delay = delay
        self.signal: Array = np.zeros(num_agents, np.int64)
        self.age: Array = np.zeros(num_agents, np.int64)

    def begin(self, who: Array) -> None:
        self.signal[who] = self.rng.integers(0, NUM_SIGNALS, int(who.sum()))
        self.age[who] = 0

    def observe(self) -> Array:
        seen = np.zeros((len(self.ids), NUM_SIGNALS + 1), np.float32)
        seen[np.arange(len(seen)), self.signal] = self.age == 0
        seen[:, NUM_SIGNALS] = self.age == self.delay + 1
        return seen

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        is_asked = self.age == self.delay + 1
        self.reward[:] = is_asked & (choices[:, 0] == self.signal)
        self.age += 1
        return is_asked, np.zeros_like(is_asked)


def recall(seed: int = 0, num_agents: int = 12, delay: int = 4) -> TaskEnv:
    """Makes signals to remember, of behaviour Recall."""
    return TaskEnv({"Recall": RecallPopulation(num_agents, seed, delay)})
