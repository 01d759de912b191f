"""Small games with the methods of PettingZoo's environments, which need not be installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces


class Meeting:
    """Two walkers see each other's place and their own on a line and are to meet; a judge only says yes or no.

    In parallel: everybody moves at once. A walker that leaves the line is out; after `length` moves all are cut.
    """

    metadata: dict[str, Any] = {"name": "meeting"}  # noqa: RUF012  # as PettingZoo declares it

    def __init__(self, length: int = 5) -> None:
        self.length = length
        self.possible_agents = ["walker_0", "walker_1", "judge"]
        self.agents: list[str] = []
        self.seeds: list[int | None] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3, start=1) if agent == "judge" else spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2) if agent == "judge" else spaces.Box(-0.5, 1.5, (1,), np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seeds.append(seed)
        self.agents = list(self.possible_agents)
        places = np.random.default_rng(seed).uniform(-1, 1, 2)
        self.places = {"walker_0": float(places[0]), "walker_1": float(places[1])}
        self.time = 0
        return self._seen(), {name: {} for name in self.agents}

    def _seen(self) -> dict[str, Any]:
        both = list(self.places.values())
        seen: dict[str, Any] = {"walker_0": np.array(both, np.float32), "walker_1": np.array(both[::-1], np.float32)}
        return {name: 2 if name == "judge" else seen[name] for name in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.time += 1
        for name in self.places:
            if name in actions:
                self.places[name] += float(actions[name][0])
        near = -abs(self.places["walker_0"] - self.places["walker_1"])
        ended = {name: name in self.places and abs(self.places[name]) > 3 for name in self.agents}
        cut = dict.fromkeys(self.agents, self.time >= self.length)
        walked = {name: near - 20.0 * ended[name] for name in self.places if name in ended}
        reward = {name: walked[name] if name in walked else float(actions[name]) for name in self.agents}
        seen, infos = self._seen(), {name: {"action_mask": np.array([0, 1])} for name in self.agents}
        self.agents = [name for name in self.agents if not ended[name] and not cut[name]]
        return seen, reward, ended, cut, infos

    def close(self) -> None: ...


class Nim:
    """Two players in turn take one or two of `size` matches; whoever takes the last one wins. One after another."""

    metadata: dict[str, Any] = {"name": "nim"}  # noqa: RUF012  # as PettingZoo declares it

    def __init__(self, size: int = 4) -> None:
        self.size = size
        self.possible_agents = ["player_0", "player_1"]
        self.agents: list[str] = []
        self.moves: list[tuple[str, Any]] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict({"observation": spaces.Box(0, 10, (1,), np.float32), "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2, start=1)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(self.possible_agents)
        self.left = self.size
        self.agent_selection = "player_0"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)

    def agent_iter(self) -> Iterator[str]:
        while self.agents:
            yield self.agent_selection

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        name = self.agent_selection
        mask = np.array([1, int(self.left >= 2)])
        seen = {"observation": np.array([self.left], np.float32), "action_mask": mask}
        return seen, self.rewards[name], self.terminations[name], False, {}

    def step(self, action: Any) -> None:
        name = self.agent_selection
        self.moves.append((name, action))
        if self.terminations[name]:
            assert action is None, "whoever ended may not act"
            self.agents.remove(name)
            if self.agents:
                self.agent_selection = self.agents[0]
            return
        self.rewards[name] = 0.0
        self.left -= action
        assert self.left >= 0
        other = self.possible_agents[1 - self.possible_agents.index(name)]
        if self.left == 0:
            self.rewards = {name: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other

    def close(self) -> None: ...
