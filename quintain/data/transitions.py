"""From blocks of steps to transitions over one or several rewards, which replay keeps.

A transition over n steps begins at obs, earns r_0 + gamma r_1 + ... and leads to the observation after its last reward.
It is cut short where its episode ends: after a true end nothing follows, after a time-out the episode's own last
observation does. No transition reaches into another episode.
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
    """Keeps the transitions that each lane has begun and writes those that are complete into the replay memory.

    Step s of a lane stands in slot s mod n of the window; `num_open` of a lane's newest steps are not complete yet.
    """

    not_state: ClassVar[frozenset[str]] = frozenset({"memory", "layout", "fields", "num_return_steps"})

    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_steps"})
    saved_shapes: ClassVar[frozenset[str]] = frozenset({"window", "num_open"})

    def __init__(self, memory: ReplayMemory, num_lanes: int, num_return_steps: int) -> None:
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
        for t in range(rollout.num_steps):
            self._step(rollout, t, reward[t], np.float32(gamma))

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
        """Writes a new transition in every lane, and what it leads to unless its episode ends."""
        slot = self.num_steps % self.num_return_steps
        for name in self.layout.before:
            self.fields[name][slot] = rollout.array(name)[t]
        for name in self.layout.after:
            self.fields[name][slot] = rollout.array(name.removeprefix(f.NEXT))[t + 1]
        self.fields[f.REWARD][slot] = 0.0
        self.fields[f.DISCOUNT][slot] = 1.0

    def _end(self, rollout: Rollout, t: int, done: Array) -> None:
        """Lets the newest transition lead to the true last observation of its episode."""
        slot, lanes = self.num_steps % self.num_return_steps, np.flatnonzero(done)
        places = rollout.array(f.FINAL_INDEX)[t][lanes]
        for name in rollout.obs_names:
            self.fields[f"{f.NEXT}{name}"][slot, lanes] = rollout.final.array(name)[places]
        if f"{f.NEXT}{f.ACTION_MASK}" in self.fields:
            # The mask that stands there is the next episode's; what could have been chosen here nobody said.
            self.fields[f"{f.NEXT}{f.ACTION_MASK}"][slot, lanes] = True
        self.fields[f.DISCOUNT][:, done & rollout.array(f.TERMINATED)[t]] = 0.0

    def _complete(self, lanes: Array, last: int) -> None:
        """Writes everything that these lanes have begun, the oldest first; step `last` is the last that counts."""
        for age in range(self.num_return_steps - 1, -1, -1):
            self._emit(lanes & (self.num_open > age), last - age, last)
        self.num_open[lanes] = 0

    def _emit(self, lanes: Array, first: int, last: int) -> None:
        """Writes the transitions of these lanes that began at step `first`; they lead to what step `last` led to."""
        slot, last_slot = first % self.num_return_steps, last % self.num_return_steps
        chosen = slice(None) if lanes.all() else np.flatnonzero(lanes)
        if slot != last_slot:
            for name in self.layout.after:
                self.fields[name][slot, chosen] = self.fields[name][last_slot, chosen]
        self.memory.add({dtype: packed[slot, chosen] for dtype, packed in self.window.items()})
