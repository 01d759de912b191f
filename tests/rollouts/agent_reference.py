"""Assembling trajectories agent by agent and step by step, as slowly and plainly as possible."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Said(NamedTuple):
    """What one agent reports: a decision it wants, or its end."""

    agent: int
    obs: float
    reward: float = 0.0
    group_reward: float = 0.0
    interrupted: bool = False
    group: int = 0


class Row(NamedTuple):
    """One step of a trajectory, with everything that a block keeps of it."""

    obs: float
    action: float
    reward: float
    first: bool
    terminated: bool
    truncated: bool
    done: bool
    next_obs: float | None
    """What was seen after the last step of a trajectory that would have gone on."""


@dataclass
class Agent:
    obs: float
    action: float
    steps: list[list[Any]] = field(default_factory=list)
    is_first: bool = True
    total: float = 0.0
    length: int = 0


class PlainAssembler:
    """Follows each agent by itself."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.agents: dict[int, Agent] = {}
        self.trajectories: list[tuple[int, list[Row]]] = []
        self.episodes: list[tuple[float, int]] = []

    def step(self, ends: list[Said], decisions: list[Said], actions: list[float]) -> None:
        for said in ends:
            agent = self.agents.pop(said.agent, None)
            if agent is None:
                continue
            self._settle(agent, said)
            self._close(said, agent, terminated=not said.interrupted, truncated=said.interrupted)
            self.episodes.append((agent.total, agent.length))
        for said, action in zip(decisions, actions, strict=True):
            agent = self.agents.get(said.agent)
            if agent is None:
                self.agents[said.agent] = Agent(said.obs, action)
                continue
            self._settle(agent, said)
            if len(agent.steps) == self.horizon:
                self._close(said, agent, terminated=False, truncated=False)
                agent.steps, agent.is_first = [], False
            agent.obs, agent.action = said.obs, action

    def _settle(self, agent: Agent, said: Said) -> None:
        reward = said.reward + said.group_reward
        agent.steps.append([agent.obs, agent.action, reward])
        agent.total += reward
        agent.length += 1

    def _close(self, said: Said, agent: Agent, *, terminated: bool, truncated: bool) -> None:
        rows = []
        for number, (obs, action, reward) in enumerate(agent.steps):
            is_last = number == len(agent.steps) - 1
            rows.append(
                Row(
                    obs=obs,
                    action=action,
                    reward=reward,
                    first=agent.is_first and number == 0,
                    terminated=terminated and is_last,
                    truncated=truncated and is_last,
                    done=is_last,
                    next_obs=said.obs if is_last and not terminated else None,
                )
            )
        self.trajectories.append((said.agent, rows))
