"""Reports of the agents of one behaviour at a step, with ML-Agents' names: DecisionSteps and TerminalSteps.

One array per quantity and one row per agent. Objects for single agents are made on access by id only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from quintain.envs.agents.specs import BehaviorSpec

if TYPE_CHECKING:
    from quintain.typing import Array


class DecisionStep(NamedTuple):
    """One agent that requests a decision."""

    obs: list[Array]
    reward: float
    agent_id: int
    action_mask: list[Array] | None
    group_id: int
    group_reward: float


class TerminalStep(NamedTuple):
    """One agent whose episode ended."""

    obs: list[Array]
    reward: float
    interrupted: bool
    agent_id: int
    group_id: int
    group_reward: float


Step = TypeVar("Step", DecisionStep, TerminalStep)


class _Steps(Mapping[int, Step]):
    """Finds rows by agent id; iterates over the ids."""

    obs: list[Array]
    reward: Array
    agent_id: Array
    group_id: Array
    group_reward: Array

    @property
    def agent_id_to_index(self) -> dict[int, int]:
        return {int(agent): row for row, agent in enumerate(self.agent_id)}

    def __len__(self) -> int:
        return len(self.agent_id)

    def __iter__(self) -> Iterator[int]:
        yield from (int(agent) for agent in self.agent_id)

    def _row_of(self, agent_id: int) -> int:
        found = np.flatnonzero(np.asarray(self.agent_id) == agent_id)
        if not len(found):
            raise KeyError(f"agent {agent_id} is not among the {len(self)} agents of this step")
        return int(found[0])


class DecisionSteps(_Steps[DecisionStep]):
    """All agents of a behaviour that request a decision, in the order of their actions."""

    def __init__(
        self,
        obs: Sequence[Array],
        reward: Array,
        agent_id: Array,
        action_mask: Sequence[Array] | None = None,
        group_id: Array | None = None,
        group_reward: Array | None = None,
    ) -> None:
        """Takes the rows; `action_mask` has an array [n, options] per branch, True where an option is forbidden.

        Agents without `group_id` are in group 0, which is no group.
        """
        self.obs = list(obs)
        self.reward = reward
        self.agent_id = agent_id
        self.action_mask = None if action_mask is None else list(action_mask)
        self.group_id = np.zeros(len(agent_id), np.int32) if group_id is None else group_id
        self.group_reward = np.zeros(len(agent_id), np.float32) if group_reward is None else group_reward

    def __getitem__(self, agent_id: int) -> DecisionStep:
        row = self._row_of(agent_id)
        return DecisionStep(
            obs=[rows[row] for rows in self.obs],
            reward=float(self.reward[row]),
            agent_id=agent_id,
            action_mask=None if self.action_mask is None else [branch[row] for branch in self.action_mask],
            group_id=int(self.group_id[row]),
            group_reward=float(self.group_reward[row]),
        )

    @staticmethod
    def empty(spec: BehaviorSpec) -> DecisionSteps:
        """Returns steps without agents."""
        return DecisionSteps(_no_obs(spec), np.zeros(0, np.float32), np.zeros(0, np.int32))


class TerminalSteps(_Steps[TerminalStep]):
    """All agents of a behaviour whose episode ended at this step."""

    def __init__(
        self,
        obs: Sequence[Array],
        reward: Array,
        interrupted: Array,
        agent_id: Array,
        group_id: Array | None = None,
        group_reward: Array | None = None,
    ) -> None:
        """Takes the rows; `interrupted` episodes were truncated: their value is bootstrapped."""
        self.obs = list(obs)
        self.reward = reward
        self.interrupted = interrupted
        self.agent_id = agent_id
        self.group_id = np.zeros(len(agent_id), np.int32) if group_id is None else group_id
        self.group_reward = np.zeros(len(agent_id), np.float32) if group_reward is None else group_reward

    def __getitem__(self, agent_id: int) -> TerminalStep:
        row = self._row_of(agent_id)
        return TerminalStep(
            obs=[rows[row] for rows in self.obs],
            reward=float(self.reward[row]),
            interrupted=bool(self.interrupted[row]),
            agent_id=agent_id,
            group_id=int(self.group_id[row]),
            group_reward=float(self.group_reward[row]),
        )

    @staticmethod
    def empty(spec: BehaviorSpec) -> TerminalSteps:
        """Returns steps without agents."""
        return TerminalSteps(_no_obs(spec), np.zeros(0, np.float32), np.zeros(0, np.bool_), np.zeros(0, np.int32))


def _no_obs(spec: BehaviorSpec) -> list[Array]:
    return [np.zeros((0, *each.shape), np.float32) for each in spec.observation_specs]
