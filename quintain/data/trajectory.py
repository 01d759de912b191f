"""Trajectories of agents that come and go: which ended, and a block that keeps them one after another.

A trajectory has at most `time_horizon` steps of one agent. It ends because the episode really ended (terminated), was
interrupted (truncated), or only because the horizon was reached; in the last two cases something would have followed,
and what was seen next is kept for the critic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
import torch

from quintain.core.state import require_count
from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.mates import copy_mates, padded, set_width
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec

if TYPE_CHECKING:
    from quintain.typing import Array, State, Values

GROUP_REWARD = "group_reward"
"""[slots, horizon] what a step brought to the agent's whole group."""
MATES_REWARD = "mates_reward"
"""[slots, horizon] the sum of what a step brought to each of the agent's mates; only where groups learn."""
ADDED_REWARDS = (GROUP_REWARD, MATES_REWARD)
"""What is added to an agent's own reward."""


class Closed(NamedTuple):
    """Trajectories that ended together: k of them, in the order they ended. Their steps still lie in agents' slots."""

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
    """What was seen after the last step, by field name, [k, ...]"""
    begin_state: Array | None = None
    """[k, S] the policy's memory before the first step, if it has one"""
    last_state: Array | None = None
    """[k, S] the same after the last step"""
    next_mates: dict[str, Array] | None = None
    """Who of the agent's group was there after the last step and what they saw, by field name, [k, M, ...], if groups
    learn; who ended is not, unless interrupted"""

    @property
    def goes_on(self) -> Array:
        """[k] bool, something follows: for the agent, or for its group without it."""
        ends = self.terminated
        return ~ends if self.next_mates is None else ~ends | self.next_mates[f.MATES].any(axis=1)

    def kept_ends(self, *, of_all: bool) -> Array:
        """Returns of which trajectories to keep what was seen next: those that go on, or all with several streams.

        Some reward streams do not end where an episode does.
        """
        return np.arange(len(self.lengths)) if of_all else np.flatnonzero(self.goes_on)

    def num_places(self, steps: Mapping[str, Array]) -> int:
        """Returns for how many mates there must be room to keep these trajectories."""
        if self.next_mates is None:
            return 0
        return int(max(steps[f.MATES].shape[2], self.next_mates[f.MATES].shape[1]))

    def followed_by(self, rows: Array, like: Mapping[str, torch.Tensor]) -> dict[str, Values]:
        """Returns what was seen after the last step of some, by field name, [len(rows), ...]."""
        seen: dict[str, Values] = {name: obs[rows] for name, obs in self.next_obs.items()}
        mates = {name: each[rows] for name, each in (self.next_mates or {}).items()}
        return {**seen, **padded(mates, like)}

    def places(self, horizon: int) -> Array:
        """Returns where the steps lie in fields that were flattened from [slots, horizon, ...], in order."""
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.slots * horizon - before, self.lengths) + np.arange(int(self.lengths.sum()))


def flat_steps(field: Array) -> Array:
    """Returns steps of slots [slots, horizon, ...] as a view [slots * horizon, ...]: one index is found faster."""
    return field.reshape(field.shape[0] * field.shape[1], *field.shape[2:])


class TrajectoryBlock(Rollout):
    """One lane that holds whole trajectories one after another; it grows when it is too small.

    `num_steps` is how many steps it holds. Every field ends with one row of padding, as in any rollout, and what
    learners read (`storage`, `arrays`) is up to date after `seal`.
    """

    is_whole: ClassVar[bool] = True

    def __init__(self, spec: BehaviorSpec, num_rows: int, fields: Declared | None = None) -> None:
        """Makes room for so many steps."""
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
    """Steps that make it full."""

    @property
    def num_held(self) -> int:
        """Steps that it holds."""
        return self.num_steps

    def count_episodes(self) -> int:
        # The end of a horizon is none of an episode.
        return self.num_episodes

    def begin(self, sequence: int, version: int) -> None:
        self.sequence = sequence
        self.num_episodes = self.num_steps = 0
        self.final.clear()
        if f.MATES in self.memory:
            # For how many mates there is room depends on what it holds now, and not on what it held before.
            self._set_width(0)
        self.seal()

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None:
        """Copies trajectories in; `steps` are the fields of agents' slots, [slots, horizon, ...]."""
        start, end = self.num_steps, self.num_steps + int(closed.lengths.sum())
        self._make_room(end)
        self.num_steps = end
        width = closed.num_places(steps)
        if width and width > self.memory[f.MATES].shape[2]:
            self._set_width(width)
        places = closed.places(steps[f.REWARD].shape[1])
        for name, field in steps.items():
            if name in ADDED_REWARDS:
                continue
            rows, known = self.faces[name][start:end], flat_steps(field)
            if rows.shape[2:] == known.shape[1:]:
                known.take(places, axis=0, out=rows[:, 0], mode="clip")
            else:
                copy_mates(rows, known[places][:, None])
        for name in ADDED_REWARDS:
            if name in steps:
                self.faces[f.REWARD][start:end, 0] += steps[name].reshape(-1)[places]
        # What an earlier use of this memory left behind must not be in a checkpoint.
        for name in self.faces.keys() - steps.keys():
            self.faces[name][start:end] = 0
        self._mark(closed, slice(start, end), start + np.cumsum(closed.lengths) - 1)
        self.num_episodes += int(np.count_nonzero(closed.terminated | closed.truncated))

    def _mark(self, closed: Closed, rows: slice, last: Array) -> None:
        """Writes where trajectories begin and end, and keeps what was seen after those that would have gone on."""
        faces = self.faces
        faces[f.VALID][rows] = True
        faces[f.FINAL_INDEX][rows] = -1
        faces[f.FIRST][last - closed.lengths + 1, 0] = closed.begins
        # A horizon is no end of an episode, but what follows it is another row: both are bootstrapped from what was
        # seen next, and neither passes an advantage on.
        faces[f.DONE][last] = True
        faces[f.TERMINATED][last, 0] = closed.terminated
        faces[f.TRUNCATED][last, 0] = closed.truncated
        ends = closed.kept_ends(of_all=self.has_many_values)
        if len(ends):
            seen = closed.followed_by(ends, self.final.rows)
            kept = self.final.add(seen, self.policy_state.expand(len(ends), -1))
            faces[f.FINAL_INDEX][last[ends], 0] = kept.numpy()

    def seal(self) -> None:
        """Lets all fields end after the steps that are there."""
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

    def state_dict(self) -> State:
        self.seal()
        # The row of padding was never written by this block; what it holds must not depend on what was there before.
        for field in self.storage.values():
            field[-1].fill_(0)
        return {**super().state_dict(), "num_episodes": self.num_episodes}

    def load_state_dict(self, state: State) -> None:
        num_rows = len(state["fields"][f.VALUE]) - 1
        self._make_room(num_rows)
        self.num_steps = num_rows
        if f.MATES in self.memory:
            self._set_width(state["fields"][f.MATES].shape[2])
        self.seal()
        super().load_state_dict(state)
        self.num_episodes = require_count("num_episodes", state["num_episodes"])
