"""Trajectories of agents side by side, one column each: minibatches of recurrent policies are whole sequences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from quintain.core.state import copy_into, require_count, require_shapes
from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Rollout, require_found
from quintain.data.spec import BehaviorSpec
from quintain.data.teammates import copy_teammates, set_width
from quintain.data.trajectory import ADDED_REWARDS, Closed

if TYPE_CHECKING:
    from quintain.typing import Array, State


class SequenceBlock(Rollout):
    """One lane per trajectory, each as long as the horizon; steps beyond a trajectory's end are not valid.

    Trajectories are collected in memory that grows. `seal` makes the fields that learners read, with one lane per
    trajectory.
    """

    is_whole: ClassVar[bool] = True

    def __init__(self, spec: BehaviorSpec, horizon: int, num_columns: int, fields: Declared | None = None) -> None:
        """Allocates memory for so many trajectories."""
        # The noise that agents acted with is not kept.
        super().__init__(spec, {**(fields or {}), f.NOISE: Field((0,))}, num_lanes=num_columns, num_steps=horizon)
        self.memory = dict(self.storage)
        self.states = self.policy_state
        self.faces = {name: field.numpy() for name, field in self.memory.items()}
        self.num_columns = 0
        self.num_held = 0
        self.num_episodes = 0
        self.seal()

    num_wanted = 1
    """Number of steps that fill it."""

    @property
    def capacity(self) -> int:
        """Number of trajectories that fit."""
        return len(self.states)

    def count_episodes(self) -> int:
        return self.num_episodes

    def begin(self, sequence: int, version: int) -> None:
        self.sequence = sequence
        self.num_columns = self.num_held = self.num_episodes = 0
        self.final.clear()
        if f.TEAMMATES in self.memory:
            # For how many teammates there is room depends on what it holds now, and not on what it held before.
            self._set_width(0)
        self.seal()

    def append(self, closed: Closed, steps: Mapping[str, Array]) -> None:
        """Copies trajectories in; `steps` are the fields of agents' slots, [slots, horizon, ...]."""
        assert closed.begin_state is not None, "a recurrent policy gives its hidden state"
        columns = slice(self.num_columns, self.num_columns + len(closed.lengths))
        self.is_sealed = False
        self._make_room(columns.stop)
        width = closed.num_places(steps)
        if width and width > self.memory[f.TEAMMATES].shape[2]:
            self._set_width(width)
        present = np.arange(self.num_steps)[:, None] < closed.lengths[None, :]
        for name, field in steps.items():
            if name in ADDED_REWARDS:
                continue
            rows, into = field[closed.slots].swapaxes(0, 1), self.faces[name][:-1, columns]
            rows[~present] = 0
            if into.shape == rows.shape:
                into[...] = rows
            else:
                copy_teammates(into, rows)
        for name in ADDED_REWARDS:
            if name in steps:
                self.faces[f.REWARD][:-1, columns] += steps[name][closed.slots].T * present
        for name in self.faces.keys() - steps.keys():
            self.faces[name][:, columns] = 0
        self.states[columns] = torch.from_numpy(closed.begin_state)
        self.num_columns = columns.stop
        self.num_held += int(closed.lengths.sum())
        self.num_episodes += int(np.count_nonzero(closed.terminated | closed.truncated))
        self._mark(closed, columns, present)

    def _mark(self, closed: Closed, columns: slice, present: Array) -> None:
        """Writes where trajectories begin and end, and keeps the next observation of those to bootstrap."""
        faces, last = self.faces, closed.lengths - 1
        numbers = np.arange(columns.start, columns.stop)
        faces[f.FINAL_INDEX][:-1, columns] = -1
        faces[f.VALID][:-1, columns] = present
        faces[f.FIRST][0, columns] = closed.begins
        faces[f.DONE][last, numbers] = True
        faces[f.TERMINATED][last, numbers] = closed.terminated
        faces[f.TRUNCATED][last, numbers] = closed.truncated
        ends = closed.kept_ends(of_all=self.keeps_all_ends)
        if len(ends):
            assert closed.last_state is not None
            seen = closed.followed_by(ends, self.final.rows)
            kept = self.final.add(seen, torch.from_numpy(closed.last_state[ends]))
            faces[f.FINAL_INDEX][last[ends], numbers[ends]] = kept.numpy()

    def seal(self) -> None:
        """Makes contiguous fields with one lane per trajectory, so that flat views share their memory."""
        self.is_sealed = True
        with torch.inference_mode(False):
            self.num_lanes = self.num_columns
            self.storage = {name: field[:, : self.num_columns].contiguous() for name, field in self.memory.items()}
            self.arrays = {name: field.numpy() for name, field in self.storage.items()}
            self.policy_state = self.states[: self.num_columns]

    def _make_room(self, num_columns: int) -> None:
        if num_columns <= self.capacity:
            return
        # Growing happens while acting; what is made in inference mode could never take part in learning.
        with torch.inference_mode(False):
            room = max(num_columns, 2 * self.capacity) - self.capacity
            self.states = torch.cat((self.states, self.states.new_zeros((room, self.states.shape[1]))))
            for name, field in self.memory.items():
                more = field.new_zeros((field.shape[0], room, *field.shape[2:]))
                self.memory[name] = torch.cat((field, more), dim=1)
        self.faces = {name: field.numpy() for name, field in self.memory.items()}

    def _set_width(self, width: int) -> None:
        set_width(self, self.memory, width)
        self.faces = {name: field.numpy() for name, field in self.memory.items()}

    def contents(self) -> State:
        held = slice(0, self.num_columns)
        # What was computed since it was sealed, such as advantages, is only there.
        known = self.storage if self.is_sealed else {name: field[:, held] for name, field in self.memory.items()}
        # The last row of a column is padding, and may hold what an earlier use left there.
        fields = {name: torch.cat((x[:-1], torch.zeros_like(x[-1:]))) for name, x in known.items()}
        return {
            "fields": fields,
            "policy_state": self.states[held],
            "final": self.final.contents(),
            "sequence": self.sequence,
            "num_held": self.num_held,
            "num_episodes": self.num_episodes,
        }

    def load_state_dict(self, state: State) -> None:
        num_columns = len(state["policy_state"])
        require_found(self.spec, state)
        self._make_room(num_columns)
        if f.TEAMMATES in self.memory:
            self._set_width(state["fields"][f.TEAMMATES].shape[2])
        require_shapes("fields", state["fields"], {name: x[:, :num_columns] for name, x in self.memory.items()})
        for name, field in self.memory.items():
            copy_into(field[:, :num_columns], state["fields"][name])
        copy_into(self.states[:num_columns], state["policy_state"])
        self.final.load_state_dict(state["final"])
        self.sequence, self.num_columns = require_count("sequence", state["sequence"]), num_columns
        self.num_held = require_count("num_held", state["num_held"], num_columns * self.num_steps)
        self.num_episodes = require_count("num_episodes", state["num_episodes"])
        self.seal()
