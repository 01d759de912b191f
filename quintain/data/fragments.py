"""Fragments: fixed-length pieces of lanes that do not wait for each other, and estimates over their borders.

A fragment is T successive steps of one lane, over ends of episodes. It knows its lane, its number in that lane, the
version that took each step, and whether it follows the fragment before it without a gap. A block holds one fragment per
column, in the order in which they were completed. Several collectors fill one block: each claims the next free columns
for the fragments that it has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
import torch

from quintain.core.state import copy_into, require_shapes
from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Allocator, Rollout, require_found
from quintain.data.spec import BehaviorSpec

if TYPE_CHECKING:
    from quintain.typing import Array, State, Values

FRAGMENT_FIELDS: Final[Declared] = {
    f.LANE: Field((), "int64"),
    f.FRAGMENT: Field((), "int64"),
    f.FOLLOWS: Field((), "bool"),
    f.SESSION: Field((), "int64"),
}
"""The identity of fragments; the first three are the same at all steps of a column."""


class Ending(NamedTuple):
    """The end of an episode inside a fragment."""

    step: int
    obs: dict[str, Array]
    """The true last observation, by field name."""
    state: torch.Tensor
    """[S] the hidden state of a recurrent policy at the last observation"""


@dataclass
class Fragment:
    """One fragment outside of a block."""

    fields: dict[str, Array]
    """[T+1, ...] by field name"""
    state: torch.Tensor
    """[S] the hidden state of a recurrent policy before the first step"""
    endings: list[Ending]
    num_uses: int = 0
    """How often it was learned from."""

    @property
    def version(self) -> int:
        """The version that took its first step: the oldest."""
        return int(self.fields[f.POLICY_VERSION][0])

    @property
    def session(self) -> int:
        """The session of the learner whose weights took its first step."""
        return int(self.fields[f.SESSION][0])


class FragmentBlock(Rollout):
    """Columns that are filled one after another with completed fragments."""

    # The store begins it, because its first column may be of any lane.
    is_whole: ClassVar[bool] = True

    def __init__(
        self,
        spec: BehaviorSpec,
        fields: Declared | None = None,
        *,
        num_lanes: int,
        num_steps: int,
        num_parts: int = 1,
        device: torch.device | str = "cpu",
        allocate: Allocator | None = None,
    ) -> None:
        """Allocates `num_lanes` columns of `num_steps` steps, which `num_parts` collectors fill together."""
        fields = {**(fields or {}), **FRAGMENT_FIELDS}
        super().__init__(
            spec,
            fields,
            num_lanes=num_lanes,
            num_steps=num_steps,
            num_parts=num_parts,
            device=device,
            allocate=allocate,
        )
        new = torch.zeros((1,), dtype=torch.int64) if allocate is None else allocate((1,), torch.int64)
        self.claimed: Array = new.numpy()
        """Number of columns that are claimed, in the memory of the block."""
        self.lock: AbstractContextManager[object] = threading.Lock()
        """Held while columns are claimed; collectors in several processes have one that excludes processes."""

    @cached_property
    def parts(self) -> list[Rollout]:
        """The columns, each with final rows of its own, so that any collector can fill it."""
        return self.split(1)

    @property
    def room(self) -> int:
        """Number of columns that are not claimed."""
        return self.num_lanes - int(self.claimed[0])

    def claim(self, most: int) -> slice:
        """Returns the next free columns, at most so many, for the caller alone."""
        with self.lock:
            first = int(self.claimed[0])
            end = min(first + most, self.num_lanes)
            self.claimed[0] = end
        return slice(first, end)

    def begin(self, sequence: int, version: int) -> None:
        super().begin(sequence, version)
        self.claimed[0] = 0

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.claimed[0] = self.num_fragments

    @property
    def num_fragments(self) -> int:
        """Number of columns that hold a fragment; fragments of a lane are counted from 1."""
        return int(np.count_nonzero(self.array(f.FRAGMENT)[0]))

    def append(self, columns: slice, source: Rollout, lanes: Array, endings: Sequence[Sequence[Ending]]) -> None:
        """Copies completed fragments of these lanes of `source` to claimed columns, with the ends of their episodes."""
        for name, rows in self.arrays.items():
            rows[:, columns] = source.arrays[name][:, lanes]
        self.policy_state[columns] = source.policy_state[torch.from_numpy(lanes)]
        for column, ends in enumerate(endings, columns.start):
            self._add_endings(column, ends)

    def append_block(self, block: Rollout, first_lane: int) -> None:
        """Copies a block of lanes that stepped together: each lane is a fragment with the number of the block."""
        columns = self.claim(block.num_lanes)
        for name in block.storage:
            self.arrays[name][:, columns] = block.array(name)
        self.arrays[f.LANE][:, columns] = first_lane + np.arange(block.num_lanes)
        self.arrays[f.FRAGMENT][:, columns] = block.sequence
        self.arrays[f.FOLLOWS][:, columns] = True
        self.policy_state[columns] = block.policy_state
        for lane in range(block.num_lanes):
            self._add_endings(columns.start + lane, _endings(block, lane))

    def _add_endings(self, column: int, endings: Sequence[Ending]) -> None:
        self.arrays[f.FINAL_INDEX][:, column] = -1
        final = self.final
        if self.num_parts > 1:
            final = self.parts[column].final
            final.clear()
        for end in endings:
            rows: dict[str, Values] = {name: value[None] for name, value in end.obs.items()}
            self.arrays[f.FINAL_INDEX][end.step, column] = final.add(rows, end.state[None]).item()

    def fragment(self, column: int) -> Fragment:
        """Returns a copy of one fragment."""
        fields = {name: rows[:, column].copy() for name, rows in self.arrays.items()}
        return Fragment(fields, self.policy_state[column].clone(), _endings(self, column))

    def put(self, fragments: Sequence[Fragment]) -> None:
        """Appends fragments; their advantages and final values are kept too."""
        for column, fragment in enumerate(fragments, self.claim(len(fragments)).start):
            for name, rows in self.arrays.items():
                rows[:, column] = fragment.fields[name]
            self.policy_state[column] = fragment.state
            self._add_endings(column, fragment.endings)

    def begin_after(self, sequence: int, num_held: int) -> None:
        """Clears it, and leaves its first columns to fragments that another process holds."""
        self.begin(sequence, 0)
        self.arrays[f.FRAGMENT][:, :num_held] = 1
        self.claimed[0] = num_held

    def close(self) -> None:
        """Leaves no column to claim."""
        self.claim(self.num_lanes)

    def columns(self, first: int) -> State:
        """Returns the fragments from a column on, as views, with their final rows."""
        some = slice(first, self.num_fragments)
        fields: dict[str, Array] = {name: rows[:, some] for name, rows in self.arrays.items()}
        index = fields[f.FINAL_INDEX]
        is_used = index >= 0
        fields[f.FINAL_INDEX] = np.full_like(index, -1)
        fields[f.FINAL_INDEX][is_used] = np.arange(np.count_nonzero(is_used))
        final_rows = self.final.take(torch.from_numpy(index[is_used].astype(np.int64)))
        final = {name: rows.numpy() for name, rows in final_rows.items()}
        return {"fields": fields, "policy_state": self.policy_state[some], "final": final}

    def append_columns(self, state: State, first: int = 0) -> int:
        """Copies fragments that `columns` returned in another process, from one on; returns how many have room here."""
        fields, final = state["fields"], state["final"]
        num_given = np.asarray(fields[f.FRAGMENT]).shape[1]
        if num_given > self.num_lanes or not np.all(np.asarray(fields[f.FRAGMENT]) > 0):
            raise ValueError(f"fragments.{f.FRAGMENT} has {num_given} fragments for {self.num_lanes}")
        require_shapes("fields", fields, {name: rows[:, :num_given] for name, rows in self.arrays.items()})
        require_shapes("policy_state", state["policy_state"], self.policy_state[:num_given])
        require_found(self.spec, state)
        self.final.require_rows(final)
        columns = self.claim(num_given - first)
        num_taken = int(columns.stop - columns.start)
        some = slice(first, first + num_taken)
        for name, rows in self.arrays.items():
            np.copyto(rows[:, columns], np.asarray(fields[name])[:, some])
        copy_into(self.policy_state[columns], state["policy_state"][some])
        for column, index in enumerate(np.asarray(fields[f.FINAL_INDEX]).T[some], columns.start):
            endings = [
                Ending(
                    int(step),
                    {name: np.array(final[name][index[step]]) for name in self.obs_names},
                    torch.as_tensor(np.array(final[f.POLICY_STATE][index[step]])),
                )
                for step in np.flatnonzero(index >= 0)
            ]
            self._add_endings(column, endings)
        return num_taken

    def over_borders(self, recursion: Callable[..., Array], *steps: Array) -> Array:
        """Applies a recursion over time to fragments that lie end to end; returns its result [T, F].

        `steps` are reward, value [T+1, F], final value, ends, done and valid, as for `generalized_advantages`.
        """
        lane, number, follows = (self.array(name)[0] for name in (f.LANE, f.FRAGMENT, f.FOLLOWS))
        return end_to_end(lane, number, follows, recursion, *steps)


def end_to_end(lane: Array, number: Array, follows: Array, recursion: Callable[..., Array], *steps: Array) -> Array:
    """Applies a recursion over time to fragments [T, F], given by lane and number, and whether each follows the last.

    Consecutive fragments of a lane are one sequence. Where the next one is missing, the last step is bootstrapped from
    the observation that the fragment itself saw next. Sequences of equal length are computed side by side.
    """
    reward, value = steps[:2]
    order = np.lexsort((number, lane))
    before, after = order[:-1], order[1:]
    is_start = np.ones(len(order), np.bool_)
    is_start[1:] = ~(
        (number[before] > 0) & (lane[before] == lane[after]) & (number[before] + 1 == number[after]) & follows[after]
    )
    starts = np.flatnonzero(is_start)
    lengths = np.diff(starts, append=len(order))
    result = np.empty_like(reward)
    for length in np.unique(lengths).tolist():
        # [sequences, fragments of each], in the order of time
        columns = order[starts[lengths == length][:, None] + np.arange(length)]
        laid = [np.concatenate([each[:, some] for some in columns.T]) for each in (reward, value[:-1], *steps[2:])]
        reward_line, value_line, final_line, ends_line, done_line, valid_line = laid
        cut = ~done_line[-1]
        done_line[-1] = True
        final_line[-1, cut] = value[-1, columns[cut, -1]]
        # Nothing is after the last step, whose bootstrap is its final value.
        value_line = np.concatenate((value_line, np.zeros((1, len(columns)), value.dtype)))
        found = recursion(reward_line, value_line, final_line, ends_line, done_line, valid_line)
        result[:, columns] = found.reshape(length, len(reward), -1).transpose(1, 2, 0)
    return result


def _endings(block: Rollout, column: int) -> list[Ending]:
    """Returns copies of the last observations of episodes that ended in a column."""
    index = block.array(f.FINAL_INDEX)[:, column]
    endings = []
    for step in np.flatnonzero(index >= 0):
        row = int(index[step])
        obs = {name: block.final.array(name)[row].copy() for name in block.obs_names}
        endings.append(Ending(int(step), obs, block.final.rows[f.POLICY_STATE][row].cpu().clone()))
    return endings
