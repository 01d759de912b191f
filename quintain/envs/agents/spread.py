"""Cooperative landmarks in PettingZoo's parallel form, after the particle worlds of Lowe et al. (2017).

PettingZoo itself is not needed. `quintain train ppo agents/quintain.envs.agents.spread:Spread` trains in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from gymnasium import spaces

from quintain.core.state import KeepsState

if TYPE_CHECKING:
    from quintain.typing import Array, Info, Keywords

_DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
"""Acceleration of each discrete action: none, left, right, down, up."""
_PUSH, _KEPT_SPEED, _TIME = 0.5, 0.75, 0.2


class Spread(KeepsState):
    """As many agents as landmarks on a plane, with a common reward: each landmark should have an agent nearby.

    An agent observes its velocity and position, and the relative positions of landmarks and other agents. An action
    changes its velocity, which decays by a quarter at each step. Games are truncated after `num_steps` steps.
    """

    metadata: ClassVar[Info] = {"name": "spread", "is_parallelizable": True, "render_modes": []}
    render_mode: str | None = None

    def __init__(self, num_agents: int = 2, num_steps: int = 25) -> None:
        self.num_steps = num_steps
        self.possible_agents = [f"agent_{i}" for i in range(num_agents)]
        self.agents: list[str] = []
        self.rng = np.random.default_rng(0)
        self.places: Array = np.zeros((num_agents, 2))
        self.speeds: Array = np.zeros((num_agents, 2))
        self.landmarks: Array = np.zeros((num_agents, 2))
        self.age = 0
        # PettingZoo asks that the same agent always has the same space, the object itself.
        self._observed = {name: self._space(4 * num_agents + 2) for name in self.possible_agents}
        self._acted = {name: spaces.Discrete(len(_DIRECTIONS)) for name in self.possible_agents}

    not_state: ClassVar[frozenset[str]] = frozenset({"_observed", "_acted"})

    @staticmethod
    def _space(size: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    def observation_space(self, agent: str) -> spaces.Box:
        return self._observed[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self._acted[agent]

    def reset(
        self, seed: int | None = None, options: Keywords | None = None
    ) -> tuple[dict[str, Array], dict[str, Info]]:
        """Starts a game; without a seed it continues with the current generator."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.places, self.landmarks = self.rng.uniform(-1.0, 1.0, (2, *self.places.shape))
        self.speeds = np.zeros_like(self.speeds)
        self.age = 0
        return self._seen(), {name: {} for name in self.agents}

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, Array], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Info]]:
        """Moves all agents at once; no agent ends before the game is truncated."""
        if not self.agents:
            return {}, {}, {}, {}, {}
        pushed = np.array([_DIRECTIONS[int(actions[name])] for name in self.agents])
        self.speeds = _KEPT_SPEED * self.speeds + _PUSH * pushed
        self.places = self.places + _TIME * self.speeds
        self.age += 1
        names, seen, reward = list(self.agents), self._seen(), self._reward()
        is_cut = self.age >= self.num_steps
        self.agents = [] if is_cut else names
        return (
            seen,
            dict.fromkeys(names, reward),
            dict.fromkeys(names, False),
            dict.fromkeys(names, is_cut),
            {name: {} for name in names},
        )

    def _reward(self) -> float:
        """Returns minus the mean distance from each landmark to its nearest agent."""
        apart = np.linalg.norm(self.landmarks[:, None] - self.places[None, :], axis=-1)
        return -float(apart.min(axis=1).mean())

    def _seen(self) -> dict[str, Array]:
        seen = {}
        for i, name in enumerate(self.possible_agents):
            others = np.delete(self.places, i, axis=0) - self.places[i]
            parts = (self.speeds[i], self.places[i], (self.landmarks - self.places[i]).ravel(), others.ravel())
            seen[name] = np.concatenate(parts).astype(np.float32)
        return seen

    def render(self) -> None:
        """Returns None: there are no images."""

    def close(self) -> None: ...
