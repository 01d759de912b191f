"""One trajectory of one agent, with ML-Agents' names. It holds arrays; objects for single steps are made on access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from quintain.behaviors.buffer import AgentBuffer, BufferKey, ObservationKeyPrefix
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, leaves
from quintain.data.trajectory import GROUP_REWARD, Closed
from quintain.envs.agents.specs import ActionTuple

if TYPE_CHECKING:
    from quintain.typing import Array, State


class AgentStatus(NamedTuple):
    """Observation and action of a teammate at the same time."""

    obs: list[Array]
    action: ActionTuple


class AgentExperience(NamedTuple):
    """One step of one agent: observation, action and results."""

    obs: list[Array]
    reward: float
    done: bool
    action: ActionTuple
    action_probs: float
    """Log-probability of the whole action."""
    action_mask: Array | None
    """True where an option was forbidden."""
    interrupted: bool
    group_reward: float
    group_status: list[AgentStatus]
    """Of its teammates, if groups learn."""


class Trajectory:
    """At most `time_horizon` steps of one agent, and the next observation."""

    def __init__(
        self,
        behavior_id: str,
        spec: BehaviorSpec,
        fields: Mapping[str, Array],
        next_obs: list[Array],
        *,
        agent_id: int,
        done_reached: bool,
        interrupted: bool,
        begins_episode: bool,
        group_id: int = 0,
        next_teammates: Mapping[str, Array] | None = None,
    ) -> None:
        """Takes the steps by field name, [length, ...]; `next_teammates` are those present after it."""
        self.behavior_id = behavior_id
        self.spec = spec
        self.fields = dict(fields)
        self.next_obs = next_obs
        self.next_teammates = None if next_teammates is None else dict(next_teammates)
        self.agent_id = str(agent_id)
        self.done_reached = done_reached
        self.interrupted = interrupted
        self.begins_episode = begins_episode
        self.group_id = group_id

    def __len__(self) -> int:
        return len(self.fields[f.REWARD])

    @property
    def next_group_obs(self) -> list[list[Array]]:
        """Observations of the teammates that were present after the last step; empty where groups do not learn."""
        if self.next_teammates is None:
            return []
        seen = [self.next_teammates[name] for name in leaves(self.spec.obs, f.TEAMMATE_OBS)]
        return [[rows[mate] for rows in seen] for mate in np.flatnonzero(self.next_teammates[f.TEAMMATES])]

    @property
    def all_group_dones_reached(self) -> bool:
        """Whether the agent's whole group ended; where groups do not learn, whether the agent did."""
        return self.done_reached and not self.next_group_obs

    @property
    def steps(self) -> list[AgentExperience]:
        """The steps as objects, made on access."""
        last = len(self) - 1
        numbers, choices = self._actions(f.ACTION)
        mask = self.fields.get(f.ACTION_MASK)
        return [
            AgentExperience(
                obs=[self.fields[name][i] for name in leaves(self.spec.obs, f.OBS)],
                reward=float(self.fields[f.REWARD][i]),
                done=self.done_reached and i == last,
                action=ActionTuple(numbers[i : i + 1], choices[i : i + 1]),
                action_probs=float(self.fields[f.LOG_PROB][i]),
                action_mask=None if mask is None else ~mask[i],
                interrupted=self.interrupted and i == last,
                group_reward=float(self.fields[GROUP_REWARD][i]),
                group_status=self._group_status(i),
            )
            for i in range(len(self))
        ]

    def to_agentbuffer(self) -> AgentBuffer:
        """Returns the steps as a buffer of arrays."""
        buffer = AgentBuffer()
        length = len(self)
        numbers, choices = self._actions(f.ACTION)
        for number, name in enumerate(leaves(self.spec.obs, f.OBS)):
            seen = self.fields[name]
            following = np.concatenate((seen[1:], self.next_obs[number][None]))
            buffer[ObservationKeyPrefix.OBSERVATION, number].set(seen)
            buffer[ObservationKeyPrefix.NEXT_OBSERVATION, number].set(following)
        done = np.zeros(length, np.bool_)
        done[-1] = self.done_reached
        mask = self.fields.get(f.ACTION_MASK)
        columns = {
            BufferKey.CONTINUOUS_ACTION: numbers,
            BufferKey.DISCRETE_ACTION: choices,
            BufferKey.LOG_PROBS: self.fields[f.LOG_PROB],
            BufferKey.VALUE_ESTIMATES: self.fields[f.VALUE],
            BufferKey.ACTION_MASK: np.ones((length, 0), np.float32) if mask is None else mask.astype(np.float32),
            BufferKey.ENVIRONMENT_REWARDS: self.fields[f.REWARD],
            BufferKey.GROUP_REWARD: self.fields[GROUP_REWARD],
            BufferKey.DONE: done.astype(np.float32),
            BufferKey.MASKS: np.ones(length, np.float32),
        }
        for key, rows in columns.items():
            buffer[key].set(rows)
        return buffer

    def _group_status(self, step: int) -> list[AgentStatus]:
        if f.TEAMMATES not in self.fields:
            return []
        numbers, choices = (rows[step] for rows in self._actions(f.TEAMMATE_ACTION))
        seen = [self.fields[name][step] for name in leaves(self.spec.obs, f.TEAMMATE_OBS)]
        return [
            AgentStatus([rows[mate] for rows in seen], ActionTuple(numbers[mate][None], choices[mate][None]))
            for mate in np.flatnonzero(self.fields[f.TEAMMATES][step])
        ]

    def _actions(self, whose: str) -> tuple[Array, Array]:
        """Returns continuous and discrete actions of the agent or its teammates; a missing kind has no columns."""
        shape = self.fields[f.TEAMMATES].shape if whose == f.TEAMMATE_ACTION else (len(self),)
        numbers, choices = np.zeros((*shape, 0), np.float32), np.zeros((*shape, 0), np.int32)
        for name, leaf in leaves(self.spec.action, whose).items():
            if isinstance(leaf, BoxSpec):
                numbers = self.fields[name]
            else:
                choices = self.fields[name].astype(np.int32)
        return numbers, choices

    def state_dict(self) -> State:
        return {
            "fields": {name: rows.copy() for name, rows in self.fields.items()},
            "next_obs": [rows.copy() for rows in self.next_obs],
            "agent_id": self.agent_id,
            "ends": [self.done_reached, self.interrupted, self.begins_episode],
            "group_id": self.group_id,
            "next_mates": None
            if self.next_teammates is None
            else {k: x.copy() for k, x in self.next_teammates.items()},
        }

    @staticmethod
    def from_state(behavior_id: str, spec: BehaviorSpec, state: State) -> Trajectory:
        """Restores a trajectory from `state_dict`."""
        done, interrupted, begins = state["ends"]
        return Trajectory(
            behavior_id,
            spec,
            {name: np.asarray(rows) for name, rows in state["fields"].items()},
            [np.asarray(rows) for rows in state["next_obs"]],
            agent_id=int(state["agent_id"]),
            done_reached=done,
            interrupted=interrupted,
            begins_episode=begins,
            group_id=state["group_id"],
            next_teammates=state["next_mates"]
            and {name: np.asarray(rows) for name, rows in state["next_mates"].items()},
        )


def trajectories_of(
    behavior_id: str, spec: BehaviorSpec, closed: Closed, steps: Mapping[str, Array]
) -> Iterator[Trajectory]:
    """Yields trajectories that ended together, each with its own copy of the steps."""
    for i, (slot, length) in enumerate(zip(closed.slots.tolist(), closed.lengths.tolist(), strict=True)):
        yield Trajectory(
            behavior_id,
            spec,
            {name: field[slot, :length].copy() for name, field in steps.items()},
            [closed.next_obs[name][i].copy() for name in leaves(spec.obs, f.OBS)],
            agent_id=int(closed.ids[i]),
            done_reached=bool(closed.terminated[i] or closed.truncated[i]),
            interrupted=bool(closed.truncated[i]),
            begins_episode=bool(closed.begins[i]),
            group_id=int(closed.group_id[i]),
            next_teammates=closed.next_teammates
            and {name: rows[i].copy() for name, rows in closed.next_teammates.items()},
        )
