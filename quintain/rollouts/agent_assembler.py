"""Assembles what the agents of one behaviour do into trajectories, for all agents at once.

Every agent that is present has a slot: a row of fields [slots, horizon, ...]. An action is written when it is taken;
what came of it is written when the agent reports again. A trajectory ends when its agent ends, or at the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from quintain.core.state import KeepsState, require_within
from quintain.data import fields as f
from quintain.data.fields import Declared, resolve_fields
from quintain.data.spec import BehaviorSpec, leaves, require_choices
from quintain.data.trajectory import GROUP_REWARD, MATES_REWARD, Closed, flat_steps
from quintain.envs.agents.boundary import Reports
from quintain.envs.agents.slots import AgentSlots
from quintain.rollouts.group_mates import GroupMates

if TYPE_CHECKING:
    from quintain.typing import Array, State


_PER_SLOT = ("length", "is_acting", "is_spoiled", "begins", "episode_return", "episode_length", "episode_number",
             "state", "begin_state")  # fmt: skip
"""Attributes with one row for each slot, beside the steps."""


class Episodes(NamedTuple):
    """Episodes that ended together."""

    numbers: Array
    """[k] by when they began"""
    returns: Array
    """[k]"""
    lengths: Array
    """[k]"""


_OF_FAULTS = frozenset({"is_spoiled", "num_dropped", "num_clamped"})
_OF_SLOTS = (
    "length", "is_acting", "is_spoiled", "begins", "episode_return", "episode_length", "episode_number", "state",
    "begin_state",
)  # fmt: skip
_WRITTEN_LATER = frozenset(
    {f.TERMINATED, f.TRUNCATED, f.DONE, f.FIRST, f.VALID, f.FINAL_INDEX, f.FINAL_VALUE, f.NOISE, f.ADVANTAGE, f.RETURN}
)
"""Fields of a block that are written when a trajectory is closed or learned from; noise is not kept."""
_OUTCOMES = (f.REWARD, GROUP_REWARD, MATES_REWARD)
_NO = np.zeros(0, np.bool_)
_NONE = np.zeros(0, np.int64)
NOTHING_CLOSED = Closed(_NONE, _NONE, _NONE, _NO, _NO, _NO, _NONE, {})
"""No trajectory at all."""


class AgentAssembler(KeepsState):
    """Holds the open trajectories of one behaviour's agents."""

    not_state: ClassVar[frozenset[str]] = frozenset({"kinds", "dropped"})
    saved_counts: ClassVar[frozenset[str]] = frozenset({"num_begun", "num_dropped", "num_clamped"})

    def __init__(
        self,
        spec: BehaviorSpec,
        horizon: int,
        fields: Declared | None = None,
    ) -> None:
        """Makes a place for agents; `fields` are those that the policy declared, and what to keep of mates."""
        kept = {name: each for name, each in resolve_fields(spec, fields).items() if name not in _WRITTEN_LATER}
        state_shape = kept.pop(f.POLICY_STATE).shape
        self.horizon = horizon
        self.kinds = {**leaves(spec.obs, f.OBS), **leaves(spec.action, f.ACTION)}
        self.slots = AgentSlots()
        self.mates = GroupMates(spec) if f.MATES in kept else None
        self.steps: dict[str, Array] = {
            name: np.zeros((0, horizon, *each.shape), each.dtype) for name, each in kept.items() if each.per == "step"
        }
        """What agents saw, did and got in their open trajectories, by field name, [slots, horizon, ...]."""
        self.steps[GROUP_REWARD] = np.zeros((0, horizon), np.float32)
        if self.mates is not None:
            self.steps |= self.mates.no_steps(horizon)
        self.length: Array = np.zeros(0, np.int64)
        """Steps of each open trajectory of which all is known."""
        self.is_acting: Array = np.zeros(0, np.bool_)
        """Whether the slot's agent took an action of which nothing came yet."""
        self.is_spoiled: Array = np.zeros(0, np.bool_)
        """Whether the slot's agent returned something that is not finite: the rest of its episode is left out."""
        self.num_dropped = 0
        """Episodes of which something was left out."""
        self.num_clamped = 0
        """Reports of agents in which something was clamped."""
        self.dropped: Array = _NONE
        """Numbers of the episodes that ended last and were spoiled."""
        self.begins: Array = np.zeros(0, np.bool_)
        """Whether the slot's trajectory is the first of an episode."""
        self.episode_return: Array = np.zeros(0, np.float64)
        self.episode_length: Array = np.zeros(0, np.int64)
        self.episode_number: Array = np.zeros(0, np.int64)
        """Which of all episodes of the behaviour the slot's is, by when they began."""
        self.num_begun = 0
        self.state: Array = np.zeros((0, *state_shape), np.float32)
        """The policy's memory of each agent, after its last action."""
        self.begin_state: Array = np.zeros((0, *state_shape), np.float32)
        """The same before the first step of its open trajectory."""
        self.deciding: Array = np.zeros(0, np.int64)
        """Slots of the agents that want a decision now, in the order in which they asked."""

    def hear(self, ends: Reports, decisions: Reports) -> None:
        """Looks at a step of the environment as a whole, before agents end and decide: groups concern both."""
        self.num_clamped += ends.num_clamped + decisions.num_clamped
        if self.mates is not None:
            self.mates.hear(self, ends, decisions)

    def end(self, ends: Reports) -> tuple[Closed, Episodes]:
        """Takes in the agents that ended; returns their trajectories, and what their episodes were like.

        An agent of which no action is known is nobody's experience: it only leaves.
        """
        assert ends.interrupted is not None
        at = self.slots.find(ends.ids)
        rows = np.flatnonzero((at >= 0) & self._acts(at))
        slots = at[rows]
        self._settle(slots, ends, rows)
        if ends.spoiled is not None or self.is_spoiled.any():
            is_lost = self.is_spoiled[slots] | (ends.spoiled[rows] if ends.spoiled is not None else False)
            self.dropped = self.episode_number[slots[is_lost]]
            self.num_dropped += len(self.dropped)
            slots, rows = slots[~is_lost], rows[~is_lost]
        interrupted = ends.interrupted[rows]
        closed = self._close(slots, ends, rows, ~interrupted, interrupted)
        played = Episodes(self.episode_number[slots], self.episode_return[slots], self.episode_length[slots])
        self.slots.remove(at[at >= 0])
        return closed, played

    def decide(self, decisions: Reports) -> Closed:
        """Takes in the agents that want a decision; returns the trajectories that reached the horizon."""
        at = self.slots.find(decisions.ids)
        is_new = at < 0
        if is_new.any():
            at[is_new] = self._welcome(decisions.ids[is_new])
        self.deciding = at
        if decisions.spoiled is not None:
            self.is_spoiled[at[decisions.spoiled]] = True
        if self.mates is not None:
            self.mates.group[at] = decisions.group_id
        rows = np.flatnonzero(self.is_acting[at])
        self._settle(at[rows], decisions, rows)
        rows = rows[self.length[at[rows]] == self.horizon]
        if not len(rows):
            # Nearly always: what follows would make a dozen empty arrays.
            return NOTHING_CLOSED
        sound = rows[~self.is_spoiled[at[rows]]]
        no = np.zeros(len(sound), np.bool_)
        closed = self._close(at[sound], decisions, sound, no, no)
        self.length[at[rows]] = 0
        self.begins[at[rows]] = False
        return closed

    @property
    def are_first(self) -> Array:
        """Whether each deciding agent is at the first step of an episode."""
        first: Array = self.begins[self.deciding] & (self.length[self.deciding] == 0)
        return first

    def act(self, acted: Mapping[str, Array | int], state: Array | None = None) -> None:
        """Writes what the deciding agents saw and do by field name: rows [n, ...], or one number for all.

        `state [n, S]` is what a policy with memory remembers after it.
        """
        at, step = self.deciding, self.length[self.deciding]
        if state is not None:
            begins = at[step == 0]
            self.begin_state[begins] = self.state[begins]
            self.state[at] = state
        places = at * self.horizon + step
        for name, rows in acted.items():
            flat_steps(self.steps[name])[places] = rows
        self.is_acting[at] = True
        if self.mates is not None:
            self.mates.look(self)

    def _acts(self, at: Array) -> Array:
        return self.is_acting[at] if len(self.is_acting) else np.zeros(len(at), np.bool_)

    def _settle(self, slots: Array, reports: Reports, rows: Array) -> None:
        """Writes what came of the last action of these agents."""
        reward, group_reward = reports.reward[rows], reports.group_reward[rows]
        step = self.length[slots]
        places = slots * self.horizon + step
        flat_steps(self.steps[f.REWARD])[places] = reward
        flat_steps(self.steps[GROUP_REWARD])[places] = group_reward
        if self.mates is not None:
            self.mates.settle(self, slots, places)
        self.length[slots] = step + 1
        self.is_acting[slots] = False
        self.episode_return[slots] += reward + group_reward
        self.episode_length[slots] += 1

    def _close(self, slots: Array, reports: Reports, rows: Array, terminated: Array, truncated: Array) -> Closed:
        return Closed(
            slots=slots,
            ids=reports.ids[rows],
            lengths=self.length[slots],
            terminated=terminated,
            truncated=truncated,
            begins=self.begins[slots],
            group_id=reports.group_id[rows],
            next_obs={name: obs[rows] for name, obs in reports.obs.items()},
            begin_state=self.begin_state[slots],
            last_state=self.state[slots],
            next_mates=None if self.mates is None else self.mates.following(slots),
        )

    def _welcome(self, ids: Array) -> Array:
        slots = self.slots.add(ids)
        room = self.slots.capacity - len(self.length)
        if room:
            for name in _PER_SLOT:
                setattr(self, name, _grown(getattr(self, name), room))
            self.steps = {name: _grown(field, room) for name, field in self.steps.items()}
            if self.mates is not None:
                self.mates.group, self.mates.reward = (_grown(x, room) for x in (self.mates.group, self.mates.reward))
        self.length[slots] = 0
        self.is_acting[slots] = self.is_spoiled[slots] = False
        self.begins[slots] = True
        self.episode_return[slots] = 0.0
        self.episode_length[slots] = 0
        self.episode_number[slots] = np.arange(self.num_begun, self.num_begun + len(slots))
        self.num_begun += len(slots)
        self.state[slots] = 0.0
        if self.mates is not None:
            self.mates.reward[slots] = 0.0
        return slots

    def state_dict(self) -> State:
        """Saves of each open trajectory what is there, and not what an earlier one left behind it."""
        known = np.where(self.slots.is_used, self.length, 0)
        seen = known + (self.slots.is_used & self.is_acting)
        longest = int(seen.max(initial=0))
        steps = {}
        for name, field in self.steps.items():
            # What comes of an action is known one step later than the action.
            present = np.arange(longest)[None, :] < (known if name in _OUTCOMES else seen)[:, None]
            present = present.reshape(*present.shape, *[1] * (field.ndim - 2))
            steps[name] = np.where(present, field[:, :longest], field.dtype.type(0))
        saved = {**super().state_dict(), "steps": steps}
        # As before there were any: a run in which all was finite saves nothing about it.
        return {name: value for name, value in saved.items() if name not in _OF_FAULTS or np.any(value)}

    def load_state_dict(self, state: State) -> None:
        nothing = {"is_spoiled": np.zeros(len(state["length"]), np.bool_), "num_dropped": 0, "num_clamped": 0}
        state = {**nothing, **state}
        self._require_places(state)
        steps = {}
        for name, field in self.steps.items():
            saved = np.asarray(state["steps"][name])
            # How many mates had a place is known only from what was saved.
            steps[name] = np.zeros((len(saved), self.horizon, *saved.shape[2:]), field.dtype)
            steps[name][:, : saved.shape[1]] = saved
        super().load_state_dict({**state, "steps": steps})

    def _require_places(self, state: State) -> None:
        """Refuses a saved state whose slots, lengths and choices do not fit each other or this behaviour."""
        slots, num_slots = state["slots"], len(state["slots"]["is_used"])
        if state["horizon"] != self.horizon or len(slots["ids"]) != len(slots["places"]):
            raise ValueError("the trajectories of agents have another horizon, or agents without a slot")
        require_within("slots.places", slots["places"], 0, num_slots - 1)
        require_within("deciding", state["deciding"], 0, num_slots - 1)
        # A slot that its agent left keeps the length of what was closed.
        require_within("length", state["length"], 0, self.horizon)
        require_within("length", np.asarray(state["length"])[np.asarray(slots["is_used"])], 0, self.horizon - 1)
        of_slots = {name: state[name] for name in _OF_SLOTS} | state["steps"]
        if self.mates is not None:
            of_slots |= {name: state["mates"][name] for name in ("group", "reward")}
        for name, rows in of_slots.items():
            if len(rows) != num_slots:
                raise ValueError(f"{name} is of {len(rows)} agents, expected {num_slots}")
        longest = max((np.shape(rows)[1] for rows in state["steps"].values()), default=0)
        if longest > self.horizon:
            raise ValueError(f"trajectories of {longest} steps, expected at most {self.horizon}")
        for name, leaf in self.kinds.items():
            require_choices(leaf, name, state["steps"][name])


def _grown(array: Array, room: int) -> Array:
    return np.concatenate((array, np.zeros((room, *array.shape[1:]), array.dtype)))
