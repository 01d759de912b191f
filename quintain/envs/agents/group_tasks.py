"""A small cooperative task for groups in which one agent has to leave early, so that the others can continue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.envs.agents.tasks import Population, TaskEnv

if TYPE_CHECKING:
    from quintain.typing import Array

ALIVE = np.float32(0.1)
"""Reward of an agent for each step it stays."""
OPEN = np.float32(1.0)
"""Group reward for each step with an open door."""


class DoorPopulation(Population):
    """Groups of two or more stand before a door; one member holds the key, and has to stay behind to open it.

    Each agent observes whether it holds the key, whether the door is open, and the time, and waits (0) or tries the
    door (1). An agent that tries the door leaves at once; only the key holder opens it. An open door gives the group a
    reward of 1 in each remaining step, so the best action for the group never pays for the agent that takes it.
    """

    spec = BehaviorSpec([ObservationSpec((3,), name="key, open, time")], ActionSpec.create_discrete((2,)))

    def __init__(self, num_groups: int, seed: int, group_size: int = 4, length: int = 8) -> None:
        super().__init__(num_groups * group_size, seed)
        self.num_groups, self.group_size, self.length = num_groups, group_size, length
        self.holder: Array = np.zeros(num_groups, np.int64)
        self.is_open: Array = np.zeros(num_groups, np.bool_)
        self.age: Array = np.zeros(num_groups, np.int64)
        self.group_reward: Array = np.zeros(num_groups, np.float32)

    def begin(self, who: Array) -> None:
        """Forms new groups of two to `group_size` members, and gives one member of each the key."""
        groups = np.flatnonzero(self._by_group(who).any(axis=1))
        sizes = self.rng.integers(2, self.group_size + 1, len(groups))
        self.holder[groups] = self.rng.integers(0, sizes)
        self.is_open[groups] = False
        self.age[groups] = 0
        self._by_group(self.decides)[groups] = np.arange(self.group_size)[None, :] < sizes[:, None]

    def _by_group(self, column: Array) -> Array:
        return column.reshape(self.num_groups, self.group_size)

    def group(self) -> Array:
        return np.repeat(np.arange(1, self.num_groups + 1, dtype=np.int32), self.group_size)

    def observe(self) -> Array:
        holds = np.arange(self.group_size)[None, :] == self.holder[:, None]
        late = self.age / self.length
        columns = [holds, *(np.broadcast_to(each[:, None], holds.shape) for each in (self.is_open, late))]
        return np.stack(columns, axis=2).reshape(len(self.ids), 3).astype(np.float32)

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        tries = self.decides & (choices[:, 0] == 1)
        holds = np.arange(self.group_size)[None, :] == self.holder[:, None]
        self.reward[:] = np.where(tries, np.float32(0.0), ALIVE)
        self.group_reward[:] = self.is_open * OPEN
        self.is_open |= (self._by_group(tries) & holds).any(axis=1)
        self.age += 1
        is_late = np.repeat(self.age >= self.length, self.group_size)
        return self.decides & (tries | is_late), np.zeros_like(tries)

    def step(self, numbers: Array, choices: Array) -> None:
        ended, interrupted = self.move(numbers, choices)
        self._note_ends(ended, interrupted)
        self.decides &= ~ended
        over = np.repeat(~self._by_group(self.decides).any(axis=1), self.group_size)
        if over.any():
            count = int(over.sum())
            self.ids[over] = np.arange(self.num_met, self.num_met + count, dtype=np.int32)
            self.num_met += count
            self.reward[over] = 0.0
            self.group_reward[over[:: self.group_size]] = 0.0
            self.begin(over)

    def _note_ends(self, who: Array, interrupted: Array) -> None:
        super()._note_ends(who, interrupted)
        self.ended["group_reward"] = np.repeat(self.group_reward, self.group_size)[who]

    def reset(self) -> None:
        self.group_reward[:] = 0.0
        super().reset()

    def steps(self) -> tuple[DecisionSteps, TerminalSteps]:
        decided, ended = super().steps()
        decided.group_reward = np.repeat(self.group_reward, self.group_size)[self.decides]
        ended.group_reward = self.ended["group_reward"]
        return decided, ended


def door(seed: int = 0, num_groups: int = 8, group_size: int = 4, length: int = 8) -> TaskEnv:
    """Makes groups before a door, of behaviour Door."""
    return TaskEnv({"Door": DoorPopulation(num_groups, seed, group_size, length)})
