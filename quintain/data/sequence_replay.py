"""Replay of whole sequences, for policies with memory: a row of the ring is one trajectory of an agent.

Every row has room for `horizon` steps and for what was seen after the last. Which steps are there is kept with it, so
that nothing else is ever learned from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Rollout
from quintain.data.row_layout import RowLayout, Rows
from quintain.data.spec import BehaviorSpec, leaves

if TYPE_CHECKING:
    from quintain.typing import Array, State


class SequenceLayout(RowLayout):
    """Lays out one sequence: what was seen [horizon + 1, ...], what was done and came of it [horizon, ...]."""

    def __init__(self, spec: BehaviorSpec, horizon: int, state_size: int) -> None:
        self.horizon = horizon
        self.kinds = {**leaves(spec.obs, f.OBS), **leaves(spec.action, f.ACTION)}
        seen = {name: (leaf.dtype, leaf.shape) for name, leaf in leaves(spec.obs, f.OBS).items()}
        if spec.mask_size:
            seen[f.ACTION_MASK] = ("bool", (spec.mask_size,))
        done = {name: (leaf.dtype, leaf.shape) for name, leaf in leaves(spec.action, f.ACTION).items()}
        done |= {f.REWARD: ("float32", ()), f.DISCOUNT: ("float32", ()), f.VALID: ("bool", ())}
        self.before = self.after = tuple(seen)
        self.widths = {}
        self.columns = {
            **{name: self._place(dtype, (horizon + 1, *shape)) for name, (dtype, shape) in seen.items()},
            **{name: self._place(dtype, (horizon, *shape)) for name, (dtype, shape) in done.items()},
            f.POLICY_STATE: self._place("float32", (state_size,)),
        }
        self.row_bytes = sum(width * np.dtype(dtype).itemsize for dtype, width in self.widths.items())

    def lengths(self, rows: Rows, places: Array) -> Array:
        """Returns how many steps the sequences at these places have."""
        valid = self.columns[f.VALID]
        lengths: Array = rows[valid.dtype][places, valid.places].sum(axis=1)
        return lengths


class SequenceWriter:
    """Writes one row for each trajectory of a block."""

    def __init__(self, memory: ReplayMemory, layout: SequenceLayout) -> None:
        self.memory = memory
        self.layout = layout

    def write(self, rollout: Rollout, reward: Array, gamma: float) -> None:
        """Adds the trajectories of a block, one in each lane, given the reward of each step [T, N]."""
        rows = self.layout.allocate(rollout.num_lanes)
        columns = self.layout.views(rows)
        valid = rollout.array(f.VALID)[:-1].T
        for name in columns.keys() - {f.POLICY_STATE, f.DISCOUNT, f.REWARD, f.ACTION_MASK}:
            columns[name][:, : self.layout.horizon] = rollout.array(name)[:-1].swapaxes(0, 1)
        columns[f.POLICY_STATE][...] = rollout.policy_state.numpy()
        columns[f.REWARD][...] = reward.T * valid
        columns[f.DISCOUNT][...] = np.float32(gamma) * (valid & ~rollout.array(f.TERMINATED)[:-1].T)
        if f.ACTION_MASK in columns:
            # What could have been chosen after a last step nobody said.
            columns[f.ACTION_MASK][...] = True
            allowed = rollout.array(f.ACTION_MASK)[:-1].swapaxes(0, 1)
            columns[f.ACTION_MASK][:, : self.layout.horizon][valid] = allowed[valid]
        self._write_last(columns, rollout, valid.sum(axis=1))
        self.memory.add(rows)

    def _write_last(self, columns: dict[str, Array], rollout: Rollout, lengths: Array) -> None:
        """Writes what was seen after last steps; after a true end nothing counts, so that zeros do."""
        lanes = np.arange(rollout.num_lanes)
        places = rollout.array(f.FINAL_INDEX)[lengths - 1, lanes]
        goes_on = np.flatnonzero(places >= 0)
        for name in rollout.obs_names:
            columns[name][goes_on, lengths[goes_on]] = rollout.final.array(name)[places[goes_on]]

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restores nothing: between two blocks nothing is kept here."""
