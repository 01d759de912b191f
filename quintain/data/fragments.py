"""Fragments: fixed-length pieces of lanes that do not wait for each other, and estimates over their borders.

A fragment is T successive steps of one lane, over ends of episodes. It knows its lane, its number in that lane, the
version that took each step, and whether it follows the fragment before it without a gap. A block holds one fragment per
column, in the order in which they were completed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.fields import Declared, Field
from quintain.data.rollout import Allocator, Rollout
from quintain.data.spec import BehaviorSpec

if TYPE_CHECKING:
    from quintain.typing import Array, Values

FRAGMENT_FIELDS: Final[Declared] = {
    f.LANE: Field((), "int64"),
    f.FRAGMENT: Field((), "int64"),
    f.FOLLOWS: Field((), "bool"),
}
"""The identity of fragments, the same at all steps of a column."""


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
        """Allocates `num_lanes` columns of `num_steps` steps."""
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

    @property
    def num_fragments(self) -> int:
        """Number of columns that hold a fragment; fragments of a lane are counted from 1."""
        return int(np.count_nonzero(self.array(f.FRAGMENT)[0]))

    def append(self, source: Rollout, lanes: Array, endings: Sequence[Sequence[Ending]]) -> None:
        """Copies the completed fragments of these lanes of `source`, each with the ends of its episodes."""
        first = self.num_fragments
        columns = slice(first, first + len(lanes))
        for name, rows in self.arrays.items():
            rows[:, columns] = source.arrays[name][:, lanes]
        self.policy_state[columns] = source.policy_state[torch.from_numpy(lanes)]
        for column, ends in enumerate(endings, first):
            self._add_endings(column, ends)

    def _add_endings(self, column: int, endings: Sequence[Ending]) -> None:
        self.arrays[f.FINAL_INDEX][:, column] = -1
        for end in endings:
            rows: dict[str, Values] = {name: value[None] for name, value in end.obs.items()}
            self.arrays[f.FINAL_INDEX][end.step, column] = self.final.add(rows, end.state[None]).item()

    def fragment(self, column: int) -> Fragment:
        """Returns a copy of one fragment."""
        fields = {name: rows[:, column].copy() for name, rows in self.arrays.items()}
        endings = []
        for step in np.flatnonzero(fields[f.FINAL_INDEX] >= 0):
            row = int(fields[f.FINAL_INDEX][step])
            obs = {name: self.final.array(name)[row].copy() for name in self.obs_names}
            endings.append(Ending(int(step), obs, self.final.rows[f.POLICY_STATE][row].clone()))
        return Fragment(fields, self.policy_state[column].clone(), endings)

    def put(self, fragments: Sequence[Fragment]) -> None:
        """Appends fragments; their advantages and final values are kept too."""
        for column, fragment in enumerate(fragments, self.num_fragments):
            for name, rows in self.arrays.items():
                rows[:, column] = fragment.fields[name]
            self.policy_state[column] = fragment.state
            self._add_endings(column, fragment.endings)

    def leave_out_empty(self) -> None:
        """Marks the steps of columns that hold no fragment as invalid."""
        self.arrays[f.VALID][:, self.num_fragments :] = False

    def over_borders(self, recursion: Callable[..., Array], *steps: Array) -> Array:
        """Applies a recursion over time to fragments that lie end to end; returns its result [T, F].

        `steps` are reward, value [T+1, F], final value, ends, done and valid, as for `generalized_advantages`.
        Consecutive fragments of a lane are one sequence. Where the next one is missing, the last step is bootstrapped
        from the observation that the fragment itself saw next.
        """
        reward, value, final_value, ends, done, valid = steps
        lane, number, follows = (self.array(name)[0] for name in (f.LANE, f.FRAGMENT, f.FOLLOWS))
        order = np.lexsort((number, lane))
        before, after = order[:-1], order[1:]
        goes_on = np.zeros(len(order), np.bool_)
        goes_on[:-1] = (
            (number[before] > 0)
            & (lane[before] == lane[after])
            & (number[before] + 1 == number[after])
            & follows[after]
        )

        def end_to_end(steps: Array) -> Array:
            return np.ascontiguousarray(steps[:, order].swapaxes(0, 1)).reshape(-1, 1)

        done_line, final_line = end_to_end(done), end_to_end(final_value)
        last = np.arange(1, len(order) + 1) * len(reward) - 1
        cut = ~goes_on & ~done_line[last, 0]
        done_line[last[cut]] = True
        final_line[last[cut], 0] = value[-1, order[cut]]
        value_line = np.concatenate((end_to_end(value[:-1]), np.zeros((1, 1), value.dtype)))
        found = recursion(
            end_to_end(reward), value_line, final_line, end_to_end(ends), done_line, end_to_end(valid)
        ).reshape(len(order), -1)
        result = np.empty_like(reward)
        result[:, order] = found.T
        return result
