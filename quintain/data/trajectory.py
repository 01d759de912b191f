"""Trajectories of agents that come and go: those that ended, and a block that stores them one after another.

A trajectory has at most `time_horizon` steps of one agent. It ends because the episode terminated, was interrupted
(truncated), or reached the horizon; in the last two cases it is bootstrapped, and the next observation is kept for the
critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from quintain.core.state import require_count
from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec
from quintain.data.teammates import copy_teammates, padded, set_width

if TYPE_CHECKING:
    from quintain.typing import Array, State, Values

GROUP_REWARD = "group_reward"
"""[slots, horizon] reward of the agent's whole group."""
TEAMMATES_REWARD = "mates_reward"
"""[slots, horizon] sum of the teammates' rewards; only for algorithms that learn from groups."""
ADDED_REWARDS = (GROUP_REWARD, TEAMMATES_REWARD)
"""Rewards that are added to an agent's own."""


class Closed(NamedTuple):
    """k trajectories that ended together, in order. Their steps are still in agents' slots."""

    slots: Array
    """[k] int64"""
    ids: Array
    """[k] int64"""
    lengths: Array
    """[k] int64, at least 1"""
    terminated: Array
    """[k] bool"""
    truncated: Array
    """[k] bool, the episode was interrupted; False too where only the horizon was reached"""
    begins: Array
    """[k] bool, the first step is the first of an episode"""
    group_id: Array
    """[k] int64; 0 is no group"""
    next_obs: dict[str, Array]
    """The next observation after the last step, by field name, [k, ...]"""
    begin_state: Array | None = None
    """[k, S] the hidden state before the first step, if the policy has one"""
    last_state: Array | None = None
    """[k, S] the hidden state after the last step"""
    next_teammates: dict[str, Array] | None = None
    """Teammates that were present after the last step and their observations, by field name, [k, M, ...], if groups
    learn; without those that ended, unless interrupted"""

    @property
    def goes_on(self) -> Array:
        """[k] bool, whether to bootstrap: the agent, or its group without it, continues."""
        ends = self.terminated
        return ~ends if self.next_teammates is None else ~ends | self.next_teammates[f.TEAMMATES].any(axis=1)

    def kept_ends(self, *, of_all: bool) -> Array:
        """Returns of which trajectories to keep the next observation: those that go on, or all.

        Some value heads do not end where an episode does, and some reward signals read every next observation.
        """
        return np.arange(len(self.lengths)) if of_all else np.flatnonzero(self.goes_on)

    def num_places(self, steps: Mapping[str, Array]) -> int:
        """Returns the width of teammate fields that these trajectories need."""
        if self.next_teammates is None:
            return 0
        return int(max(steps[f.TEAMMATES].shape[2], self.next_teammates[f.TEAMMATES].shape[1]))

    def followed_by(self, rows: Array, like: Mapping[str, torch.Tensor]) -> dict[str, Values]:
        """Returns the next observations of some trajectories, by field name, [len(rows), ...]."""
        seen: dict[str, Values] = {name: obs[rows] for name, obs in self.next_obs.items()}
        teammates = {name: each[rows] for name, each in (self.next_teammates or {}).items()}
        return {**seen, **padded(teammates, like)}

    def places(self, horizon: int) -> Array:
        """Returns the indices of the steps in fields flattened from [slots, horizon, ...], in order."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.slots * horizon - before, self.lengths) + np.arange(int(self.lengths.sum()))


def flat_steps(field: Array) -> Array:
    """Returns steps of slots [slots, horizon, ...] as a view [slots * horizon, ...]: one index is faster than two."""
    return field.reshape(field.shape[0] * field.shape[1], *field.shape[2:])


class TrajectoryBlock(Rollout):
    """One lane that holds whole trajectories one after another, and grows.

    `num_steps` is the number of its steps. Every field ends with one row of padding, as in any rollout. `seal` updates
    the fields that learners read (`storage`, `arrays`).
    """

    is_whole: ClassVar[bool] = True

    def __init__(self, spec: BehaviorSpec, num_rows: int, fields: Declared | None = None) -> None:
        """Allocates memory for so many steps."""
        # The noise that agents acted with is not kept.
        super().__init__(spec, {**(fields or {}), f.NOISE: Field((0,))}, num_lanes=1, num_steps=num_rows)
        self.memory, self.faces = self.storage, self.arrays
        self.num_episodes = 0
        self.num_steps = 0
        self.seal()

    @property
    def capacity(self) -> int:
        return len(self.memory[f.VALUE]) - 1

    num_wanted = 1
    """Number of steps that fill it."""

    @property
    def num_held(self) -> int:
        """Number of steps in it."""
        return self.num_steps

    def count_episodes(self) -> int:
        # The end of a horizon is none of an episode.
        return self.num_episodes

    def begin(self, sequence: int, version: int) -> None:
        self.sequence = sequence
        self.num_episodes = self.num_steps = 0
        self.final.clear()
        if f.TEAMMATES in self.memory:
            # For how many teammates there is room depends on what it holds now, and not on what it held before.
            self._set_width(0)
        self.seal()

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None:
        """Copies trajectories in; `steps` are the fields of agents' slots, [slots, horizon, ...]."""
        start, end = self.num_steps, self.num_steps + int(closed.lengths.sum())
        self._make_room(end)
        self.num_steps = end
        width = closed.num_places(steps)
        if width and width > self.memory[f.TEAMMATES].shape[2]:
            self._set_width(width)
        places = closed.places(steps[f.REWARD].shape[1])
        for name, field in steps.items():
            if name in ADDED_REWARDS:
                continue
            rows, known = self.faces[name][start:end], flat_steps(field)
            if rows.shape[2:] == known.shape[1:]:
                known.take(places, axis=0, out=rows[:, 0], mode="clip")
            else:
                copy_teammates(rows, known[places][:, None])
        for name in ADDED_REWARDS:
            if name in steps:
                self.faces[f.REWARD][start:end, 0] += steps[name].reshape(-1)[places]
        # What an earlier use of this memory left behind must not be in a checkpoint.
        for name in self.faces.keys() - steps.keys():
            self.faces[name][start:end] = 0
        self._mark(closed, slice(start, end), start + np.cumsum(closed.lengths) - 1)
        self.num_episodes += int(np.count_nonzero(closed.terminated | closed.truncated))

    def _mark(self, closed: Closed, rows: slice, last: Array) -> None:
        """Writes where trajectories begin and end, and keeps the next observation of those to bootstrap."""
        faces = self.faces
        faces[f.VALID][rows] = True
        faces[f.FINAL_INDEX][rows] = -1
        faces[f.FIRST][last - closed.lengths + 1, 0] = closed.begins
        # A horizon is no end of an episode, but what follows it is another row: both are bootstrapped from what was
        # seen next, and neither passes an advantage on.
        faces[f.DONE][last] = True
        faces[f.TERMINATED][last, 0] = closed.terminated
        faces[f.TRUNCATED][last, 0] = closed.truncated
        ends = closed.kept_ends(of_all=self.keeps_all_ends)
        if len(ends):
            seen = closed.followed_by(ends, self.final.rows)
            kept = self.final.add(seen, self.policy_state.expand(len(ends), -1))
            faces[f.FINAL_INDEX][last[ends], 0] = kept.numpy()

    def seal(self) -> None:
        """Trims all fields to the steps in it."""
        self.storage = {name: field[: self.num_steps + 1] for name, field in self.memory.items()}
        self.arrays = {name: field.numpy() for name, field in self.storage.items()}

    def _make_room(self, num_rows: int) -> None:
        if num_rows <= self.capacity:
            return
        # Growing happens while acting; what is made in inference mode could never take part in learning.
        with torch.inference_mode(False):
            capacity = max(num_rows, 2 * self.capacity)
            for name, field in self.memory.items():
                grown = field.new_zeros((capacity + 1, *field.shape[1:]))
                grown[: self.num_steps] = field[: self.num_steps]
                self.memory[name] = grown
        self.faces = {name: field.numpy() for name, field in self.memory.items()}

    def _set_width(self, width: int) -> None:
        set_width(self, self.memory, width)
        self.faces = {name: field.numpy() for name, field in self.memory.items()}

    def contents(self) -> State:
        self.seal()
        # The row of padding was never written by this block; what it holds must not depend on what was there before.
        for field in self.storage.values():
            field[-1].fill_(0)
        return {**super().contents(), "num_episodes": self.num_episodes}

    def load_state_dict(self, state: State) -> None:
        num_rows = len(state["fields"][f.VALUE]) - 1
        self._make_room(num_rows)
        self.num_steps = num_rows
        if f.TEAMMATES in self.memory:
            self._set_width(state["fields"][f.TEAMMATES].shape[2])
        self.seal()
        super().load_state_dict(state)
        self.num_episodes = require_count("num_episodes", state["num_episodes"])
