"""Assembles the steps of one behaviour's agents into trajectories, vectorized over agents.

Every agent that is present has a slot: a row of fields [slots, horizon, ...]. An action is written when it is taken;
its reward is written when the agent reports again. A trajectory ends when its agent ends, or at the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from quintain.core.state import KeepsState, require_within
from quintain.data import fields as f
from quintain.data.fields import Declared, resolve_fields
from quintain.data.spec import BehaviorSpec, leaves, require_choices
from quintain.data.trajectory import GROUP_REWARD, TEAMMATES_REWARD, Closed, flat_steps
from quintain.envs.agents.boundary import Reports
from quintain.envs.agents.slots import AgentSlots
from quintain.rollouts.teammates import Teammates

if TYPE_CHECKING:
    from quintain.typing import Array, State


_PER_SLOT = ("length", "is_acting", "is_spoiled", "begins", "episode_return", "episode_length", "episode_number",
             "state", "begin_state")  # fmt: skip
"""Attributes with one row per slot, in addition to the steps."""


class Episodes(NamedTuple):
    """Episodes that ended together."""

    numbers: Array
    """[k] in the order in which they began"""
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
"""Fields that are written when a trajectory is closed or learned from; noise is not kept."""
_OUTCOMES = (f.REWARD, GROUP_REWARD, TEAMMATES_REWARD)
_NO = np.zeros(0, np.bool_)
_NONE = np.zeros(0, np.int64)
NOTHING_CLOSED = Closed(_NONE, _NONE, _NONE, _NO, _NO, _NO, _NONE, {})
"""No trajectories."""


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
        """Takes the fields that the policy declared, and those of teammates."""
        kept = {name: each for name, each in resolve_fields(spec, fields).items() if name not in _WRITTEN_LATER}
        state_shape = kept.pop(f.POLICY_STATE).shape
        self.horizon = horizon
        self.kinds = {**leaves(spec.obs, f.OBS), **leaves(spec.action, f.ACTION)}
        self.slots = AgentSlots()
        self.teammates = Teammates(spec) if f.TEAMMATES in kept else None
        self.steps: dict[str, Array] = {
            name: np.zeros((0, horizon, *each.shape), each.dtype) for name, each in kept.items() if each.per == "step"
        }
        """Observations, actions and rewards of open trajectories, by field name, [slots, horizon, ...]."""
        self.steps[GROUP_REWARD] = np.zeros((0, horizon), np.float32)
        if self.teammates is not None:
            self.steps |= self.teammates.no_steps(horizon)
        self.length: Array = np.zeros(0, np.int64)
        """Number of complete steps of each open trajectory."""
        self.is_acting: Array = np.zeros(0, np.bool_)
        """Whether the slot's agent took an action and has not reported since."""
        self.is_spoiled: Array = np.zeros(0, np.bool_)
        """Whether the slot's agent returned a value that is not finite: the rest of its episode is dropped."""
        self.num_dropped = 0
        """Number of episodes that were dropped, in whole or in part."""
        self.num_clamped = 0
        """Number of agents' reports with a clamped value."""
        self.dropped: Array = _NONE
        """Numbers of the spoiled episodes that ended last."""
        self.begins: Array = np.zeros(0, np.bool_)
        """Whether the slot's trajectory is the first of an episode."""
        self.episode_return: Array = np.zeros(0, np.float64)
        self.episode_length: Array = np.zeros(0, np.int64)
        self.episode_number: Array = np.zeros(0, np.int64)
        """The number of the slot's episode among the behaviour's, in the order in which they began."""
        self.num_begun = 0
        self.state: Array = np.zeros((0, *state_shape), np.float32)
        """The hidden state of each agent, after its last action."""
        self.begin_state: Array = np.zeros((0, *state_shape), np.float32)
        """The hidden state before the first step of its open trajectory."""
        self.deciding: Array = np.zeros(0, np.int64)
        """Slots of the agents that request a decision, in the order of their requests."""

    def hear(self, ends: Reports, decisions: Reports) -> None:
        """Processes a step of the environment as a whole, before `end` and `decide`: groups concern both."""
        self.num_clamped += ends.num_clamped + decisions.num_clamped
        if self.teammates is not None:
            self.teammates.hear(self, ends, decisions)

    def end(self, ends: Reports) -> tuple[Closed, Episodes]:
        """Processes the agents that ended; returns their trajectories, and the results of their episodes.

        An agent that terminates before it has acted produces no transition.
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
        """Processes the agents that request a decision; returns the trajectories that reached the horizon."""
        at = self.slots.find(decisions.ids)
        is_new = at < 0
        if is_new.any():
            at[is_new] = self._welcome(decisions.ids[is_new])
        self.deciding = at
        if decisions.spoiled is not None:
            self.is_spoiled[at[decisions.spoiled]] = True
        if self.teammates is not None:
            self.teammates.group[at] = decisions.group_id
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
        """Writes observations and actions of the deciding agents by field name: rows [n, ...], or one value for all.

        `state [n, S]` is the hidden state of a recurrent policy after it.
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
        if self.teammates is not None:
            self.teammates.look(self)

    def _acts(self, at: Array) -> Array:
        return self.is_acting[at] if len(self.is_acting) else np.zeros(len(at), np.bool_)

    def _settle(self, slots: Array, reports: Reports, rows: Array) -> None:
        """Writes the rewards of these agents' last actions."""
        reward, group_reward = reports.reward[rows], reports.group_reward[rows]
        step = self.length[slots]
        places = slots * self.horizon + step
        flat_steps(self.steps[f.REWARD])[places] = reward
        flat_steps(self.steps[GROUP_REWARD])[places] = group_reward
        if self.teammates is not None:
            self.teammates.settle(self, slots, places)
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
            next_teammates=None if self.teammates is None else self.teammates.following(slots),
        )

    def _welcome(self, ids: Array) -> Array:
        slots = self.slots.add(ids)
        room = self.slots.capacity - len(self.length)
        if room:
            for name in _PER_SLOT:
                setattr(self, name, _grown(getattr(self, name), room))
            self.steps = {name: _grown(field, room) for name, field in self.steps.items()}
            if self.teammates is not None:
                self.teammates.group, self.teammates.reward = (
                    _grown(x, room) for x in (self.teammates.group, self.teammates.reward)
                )
        self.length[slots] = 0
        self.is_acting[slots] = self.is_spoiled[slots] = False
        self.begins[slots] = True
        self.episode_return[slots] = 0.0
        self.episode_length[slots] = 0
        self.episode_number[slots] = np.arange(self.num_begun, self.num_begun + len(slots))
        self.num_begun += len(slots)
        self.state[slots] = 0.0
        if self.teammates is not None:
            self.teammates.reward[slots] = 0.0
        return slots

    def state_dict(self) -> State:
        """Saves the steps of open trajectories only, without leftovers of earlier ones."""
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
        saved["mates"] = saved.pop("teammates")  # its name in checkpoints
        # As before there were any: a run in which all was finite saves nothing about it.
        return {name: value for name, value in saved.items() if name not in _OF_FAULTS or np.any(value)}

    def load_state_dict(self, state: State) -> None:
        nothing = {"is_spoiled": np.zeros(len(state["length"]), np.bool_), "num_dropped": 0, "num_clamped": 0}
        state = {**nothing, **state}
        state["teammates"] = state.pop("mates")
        self._require_places(state)
        steps = {}
        for name, field in self.steps.items():
            saved = np.asarray(state["steps"][name])
            # How many teammates had a place is known only from what was saved.
            steps[name] = np.zeros((len(saved), self.horizon, *saved.shape[2:]), field.dtype)
            steps[name][:, : saved.shape[1]] = saved
        super().load_state_dict({**state, "steps": steps})

    def _require_places(self, state: State) -> None:
        """Refuses a saved state whose slots, lengths and discrete values do not fit each other or this behaviour."""
        slots, num_slots = state["slots"], len(state["slots"]["is_used"])
        if state["horizon"] != self.horizon or len(slots["ids"]) != len(slots["places"]):
            raise ValueError("the trajectories of agents have another horizon, or agents without a slot")
        require_within("slots.places", slots["places"], 0, num_slots - 1)
        require_within("deciding", state["deciding"], 0, num_slots - 1)
        # A slot that its agent left keeps the length of what was closed.
        require_within("length", state["length"], 0, self.horizon)
        require_within("length", np.asarray(state["length"])[np.asarray(slots["is_used"])], 0, self.horizon - 1)
        of_slots = {name: state[name] for name in _OF_SLOTS} | state["steps"]
        if self.teammates is not None:
            of_slots |= {name: state["teammates"][name] for name in ("group", "reward")}
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
