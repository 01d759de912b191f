"""Converts blocks of steps to rows of a replay buffer: n-step transitions, or whole sequences.

An n-step transition starts at obs, has the return r_0 + gamma r_1 + ... and leads to the observation after its last
reward. It is shortened where its episode ends: after a termination there is no successor, after a truncation the
successor is the episode's own last observation. Neither a transition nor a sequence crosses episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.core.state import KeepsState, require_within
from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Rollout

if TYPE_CHECKING:
    from quintain.typing import Array, State


class TransitionWriter(KeepsState):
    """Writes the steps of any block to the replay buffer, as rows of its layout.

    Transitions of lanes may be completed in a later block, so incomplete ones are kept: step s of a lane is in slot s
    mod n of the window, and the newest `num_open` steps of a lane are incomplete.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"memory", "layout", "fields", "num_return_steps"})

    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_steps"})
    saved_shapes: ClassVar[frozenset[str]] = frozenset({"window", "num_open"})

    def __init__(self, memory: ReplayMemory, num_lanes: int, num_return_steps: int = 1) -> None:
        self.memory = memory
        self.layout = memory.layout
        self.num_return_steps = num_return_steps
        self.window = self.layout.allocate(num_return_steps, num_lanes)
        self.fields = self.layout.views(self.window)
        self.num_open: Array = np.zeros(num_lanes, np.int64)
        self.num_steps = 0

    def load_state_dict(self, state: State) -> None:
        require_within("num_open", state["num_open"], 0, self.num_return_steps)
        super().load_state_dict(state)
        self.layout.require_choices("window", self.window)

    def write(self, rollout: Rollout, reward: Array, gamma: float) -> None:
        """Adds the steps of a filled block, given the reward of each [T, N]."""
        if self.layout.horizon:
            self._write_sequences(rollout, reward, np.float32(gamma))
        elif rollout.is_whole:
            self._write_rows(rollout, reward, np.float32(gamma))
        else:
            for t in range(rollout.num_steps):
                self._step(rollout, t, reward[t], np.float32(gamma))

    def _write_rows(self, rollout: Rollout, reward: Array, gamma: np.float32) -> None:
        """Writes one transition per step of trajectories that lie one after another in one lane."""
        assert self.num_return_steps == 1, "trajectories of agents have transitions over one reward"
        rows = self.layout.allocate(rollout.num_steps)
        columns = self.layout.views(rows)
        ends, places = rollout.array(f.DONE)[:-1, 0], rollout.array(f.FINAL_INDEX)[:-1, 0]
        goes_on = places >= 0
        for name in (*self.layout.seen, *self.layout.done):
            columns[name][...] = rollout.array(name)[:-1, 0]
        for name in self.layout.seen:
            following, seen = columns[f"{f.NEXT}{name}"], rollout.array(name)[:, 0]
            following[...] = seen[1:]
            if name == f.ACTION_MASK:
                # Which actions would have been allowed there is unknown.
                following[ends] = True
            else:
                # After a true end nothing counts; what stands there only has to be finite.
                following[ends] = seen[:-1][ends]
                following[goes_on] = rollout.final.array(name)[places[goes_on]]
        columns[f.REWARD][...] = reward[:, 0]
        columns[f.DISCOUNT][...] = gamma * ~rollout.array(f.TERMINATED)[:-1, 0]
        self.memory.add(rows)

    def _write_sequences(self, rollout: Rollout, reward: Array, gamma: np.float32) -> None:
        """Writes one row per run of steps of one episode in one lane, lane by lane."""
        horizon = self.layout.horizon
        assert rollout.num_steps <= horizon, "a sequence is at most as long as its row has room for"
        valid, done, first = (rollout.array(name)[:-1] for name in (f.VALID, f.DONE, f.FIRST))
        begins = valid.copy()
        begins[1:] &= ~valid[:-1] | done[:-1] | first[1:]
        lanes, starts = np.nonzero(begins.T)
        number = np.cumsum(begins.T.ravel()) - 1
        lengths = np.bincount(number[valid.T.ravel()], minlength=len(lanes))
        rows = self.layout.allocate(len(lanes))
        columns = self.layout.views(rows)
        present = np.arange(horizon) < lengths[:, None]
        # Where the steps of all sequences stand, one after another.
        at = np.nonzero(present)[1] + np.repeat(starts, lengths), np.repeat(lanes, lengths)
        if f.ACTION_MASK in columns:
            # Which actions would be allowed after an end is unknown.
            columns[f.ACTION_MASK][...] = True
        for name in (*self.layout.seen, *self.layout.done):
            columns[name][:, :horizon][present] = rollout.array(name)[at]
        columns[f.VALID][...] = present
        columns[f.REWARD][present] = reward[at]
        columns[f.DISCOUNT][present] = gamma * ~rollout.array(f.TERMINATED)[at]
        # An episode begins with an empty hidden state, whatever the one before left there.
        continues = (starts == 0) & ~first[0, lanes]
        columns[f.POLICY_STATE][continues] = rollout.policy_state.cpu().numpy()[lanes[continues]]
        self._write_last(columns, rollout, lanes, starts, lengths)
        self.memory.add(rows)

    def _write_last(
        self, columns: dict[str, Array], rollout: Rollout, lanes: Array, starts: Array, lengths: Array
    ) -> None:
        """Writes the successors of last steps: zeros after a termination without one, where it has no weight."""
        last = starts + lengths - 1
        places = rollout.array(f.FINAL_INDEX)[last, lanes]
        kept, open_ends = places >= 0, ~rollout.array(f.DONE)[last, lanes]
        for name in self.layout.seen:
            columns[name][open_ends, lengths[open_ends]] = rollout.array(name)[last[open_ends] + 1, lanes[open_ends]]
            if name != f.ACTION_MASK:
                columns[name][kept, lengths[kept]] = rollout.final.array(name)[places[kept]]

    def _step(self, rollout: Rollout, t: int, reward: Array, gamma: np.float32) -> None:
        valid = rollout.array(f.VALID)[t]
        cut = (self.num_open > 0) & (rollout.array(f.FIRST)[t] | ~valid)
        if cut.any():
            # The episode was left without an end: what the last good step led to is where its value is asked for.
            self._complete(cut, self.num_steps - 1)
        self._begin(rollout, t)
        self.fields[f.REWARD] += self.fields[f.DISCOUNT] * reward
        self.fields[f.DISCOUNT] *= gamma
        self.num_open[valid] += 1
        done = rollout.array(f.DONE)[t] & valid
        if done.any():
            self._end(rollout, t, done)
            self._complete(done, self.num_steps)
        full = self.num_open == self.num_return_steps
        if full.any():
            self._emit(full, self.num_steps - self.num_return_steps + 1, self.num_steps)
            self.num_open[full] -= 1
        self.num_steps += 1

    def _begin(self, rollout: Rollout, t: int) -> None:
        """Starts a transition in every lane, and writes its successor unless its episode ends."""
        slot = self.num_steps % self.num_return_steps
        for name in (*self.layout.seen, *self.layout.done):
            self.fields[name][slot] = rollout.array(name)[t]
        for name in self.layout.after:
            self.fields[name][slot] = rollout.array(name.removeprefix(f.NEXT))[t + 1]
        self.fields[f.REWARD][slot] = 0.0
        self.fields[f.DISCOUNT][slot] = 1.0

    def _end(self, rollout: Rollout, t: int, done: Array) -> None:
        """Sets the successor of the newest transition to the true last observation of its episode."""
        slot, lanes = self.num_steps % self.num_return_steps, np.flatnonzero(done)
        places = rollout.array(f.FINAL_INDEX)[t][lanes]
        for name in rollout.obs_names:
            self.fields[f"{f.NEXT}{name}"][slot, lanes] = rollout.final.array(name)[places]
        if f"{f.NEXT}{f.ACTION_MASK}" in self.fields:
            # The mask that stands there is the next episode's; which actions were allowed here is unknown.
            self.fields[f"{f.NEXT}{f.ACTION_MASK}"][slot, lanes] = True
        self.fields[f.DISCOUNT][:, done & rollout.array(f.TERMINATED)[t]] = 0.0

    def _complete(self, lanes: Array, last: int) -> None:
        """Writes all incomplete transitions of these lanes, oldest first; step `last` is the last that counts."""
        for age in range(self.num_return_steps - 1, -1, -1):
            self._emit(lanes & (self.num_open > age), last - age, last)
        self.num_open[lanes] = 0

    def _emit(self, lanes: Array, first: int, last: int) -> None:
        """Writes the transitions of these lanes from step `first`; their successor is that of step `last`."""
        slot, last_slot = first % self.num_return_steps, last % self.num_return_steps
        chosen = slice(None) if lanes.all() else np.flatnonzero(lanes)
        if slot != last_slot:
            for name in self.layout.after:
                self.fields[name][slot, chosen] = self.fields[name][last_slot, chosen]
        self.memory.add({dtype: packed[slot, chosen] for dtype, packed in self.window.items()})
