"""Adapts PettingZoo's parallel and AEC environments to environments of agents.

They are recognised by their interface, so that PettingZoo itself need not be installed. Agents with equal spaces whose
names differ only in a trailing number share a behaviour: `player_0` and `player_1` are players. A new game starts
automatically when the last one has ended, with its own seed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.envs.agents.game_spaces import Actions, Observations
from quintain.envs.agents.specs import ActionTuple, BehaviorSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.envs.truths import truth
from quintain.errors import EnvError
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.envs.agents.env import BaseEnv
    from quintain.envs.gym.protocols import Returned
    from quintain.typing import Action, Array, Info, Observation

Game: TypeAlias = Any
"""A PettingZoo environment of either kind; `adapted` checks its interface."""

_NUMBER_AT_END = re.compile(r"_?\d+$")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")


def adapted(env: BaseEnv | Game, seed: int) -> BaseEnv:
    """Wraps a PettingZoo environment as an environment of agents; returns any other object unchanged."""
    if hasattr(env, "behavior_specs") or not hasattr(env, "possible_agents"):
        return env
    if hasattr(env, "agent_iter") and hasattr(env, "last"):
        return AecAgents(env, seed)
    return SavedParallelAgents(env, seed) if isinstance(env, Stateful) else ParallelAgents(env, seed)


class _Said:
    """Reports of the agents of one behaviour at a step, collected one by one."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.obs: list[list[Array]] = []
        self.reward: list[float] = []
        self.masks: list[Array | None] = []
        self.interrupted: list[bool] = []

    def add(self, number: int, obs: list[Array], reward: float) -> None:
        self.ids.append(number)
        self.obs.append(obs)
        self.reward.append(float(reward))

    def stacked(self, spec: BehaviorSpec) -> list[Array]:
        parts = [np.zeros((len(self.ids), *each.shape), np.float32) for each in spec.observation_specs]
        for row, obs in enumerate(self.obs):
            for part, value in zip(parts, obs, strict=True):
                part[row] = value
        return parts


class PettingZooAgents(ABC):
    """Base of both adapters: behaviours, spaces and seeds."""

    def __init__(self, env: Game, seed: int = 0) -> None:
        self.env = env
        self.rng = Rng(seed).child("games")
        self.num_games = 0
        self.numbers = {name: number for number, name in enumerate(env.possible_agents)}
        self.observed = {name: Observations(name, env.observation_space(name)) for name in self.numbers}
        self.acted = {name: Actions(name, env.action_space(name)) for name in self.numbers}
        self.behavior_of = self._behaviors()
        self.behavior_specs = {
            self.behavior_of[name]: BehaviorSpec(self.observed[name].specs, self.acted[name].spec)
            for name in self.numbers
        }
        self.decisions: dict[str, _Said] = {}
        self.ends: dict[str, _Said] = {}
        self.asking: dict[str, list[str]] = {}
        self.chosen: dict[str, Action] = {}
        self._forget()

    def _behaviors(self) -> dict[str, str]:
        shared: dict[str, list[str]] = {}
        for name in self.numbers:
            shared.setdefault(_NUMBER_AT_END.sub("", name) or name, []).append(name)
        chosen = {}
        for prefix, names in shared.items():
            spaces = {(str(self.observed[name].space), str(self.acted[name].space)) for name in names}
            for name in names:
                chosen[name] = _NOT_IN_NAMES.sub("_", prefix if len(spaces) == 1 else name)
        return chosen

    def _forget(self) -> None:
        self.decisions = {name: _Said() for name in self.behavior_specs}
        self.ends = {name: _Said() for name in self.behavior_specs}
        self.asking = {name: [] for name in self.behavior_specs}

    def _ask(self, name: str, seen: Observation, reward: float, info: Returned) -> None:
        """Records that an agent requests a decision."""
        behavior = self.behavior_of[name]
        said = self.decisions[behavior]
        said.add(self.numbers[name], self.observed[name].read(seen), reward)
        said.masks.append(self.acted[name].forbidden(self.observed[name].mask_in(seen, info)))
        self.asking[behavior].append(name)

    def _end(self, name: str, seen: Observation, reward: float, *, interrupted: bool) -> None:
        """Records that an agent's episode ended."""
        said = self.ends[self.behavior_of[name]]
        said.add(self.numbers[name], self.observed[name].read(seen), reward)
        said.interrupted.append(interrupted)

    def next_seed(self) -> int:
        self.num_games += 1
        return self.rng.seed_for("game", self.num_games)

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        for row, name in enumerate(self.asking[behavior_name]):
            self.chosen[name] = self.acted[name].native(action.continuous[row], action.discrete[row])

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        spec, asked, ended = self.behavior_specs[behavior_name], self.decisions[behavior_name], self.ends[behavior_name]
        masks = None
        if any(mask is not None for mask in asked.masks):
            width = sum(spec.action_spec.discrete_branches)
            masks = [np.stack([np.zeros(width, np.bool_) if each is None else each for each in asked.masks])]
        return (
            DecisionSteps(
                asked.stacked(spec), np.array(asked.reward, np.float32), np.array(asked.ids, np.int32), masks
            ),
            TerminalSteps(
                ended.stacked(spec),
                np.array(ended.reward, np.float32),
                np.array(ended.interrupted, np.bool_),
                np.array(ended.ids, np.int32),
            ),
        )

    @abstractmethod
    def reset(self) -> None: ...

    @abstractmethod
    def step(self) -> None: ...

    def render(self) -> Array | None:
        """Returns the game's image; requires `render_mode: rgb_array`."""
        drawn: Array | None = self.env.render()
        return drawn

    @property
    def metadata(self) -> Info:
        found: Info = getattr(self.env, "metadata", {})
        return found

    def close(self) -> None:
        self.env.close()


class ParallelAgents(PettingZooAgents):
    """Adapts a parallel game: all agents act at once."""

    def __init__(self, env: Game, seed: int = 0) -> None:
        super().__init__(env, seed)
        self.last_seen: dict[str, Observation] = {}

    def reset(self) -> None:
        self._forget()
        self._begin()

    def step(self) -> None:
        actions = {name: self.chosen.get(name, self.acted[name].nothing()) for name in self.env.agents}
        seen, rewards, terminated, truncated, infos = self.env.step(actions)
        self._forget()
        self.chosen = {}
        for name in actions:
            has_ended, is_cut = _ends(name, terminated.get(name, False), truncated.get(name, False))
            if has_ended or is_cut:
                last = seen.get(name, self.last_seen.get(name))
                self._end(name, last, rewards.get(name, 0.0), interrupted=is_cut and not has_ended)
            elif name in seen:
                self._ask(name, seen[name], rewards.get(name, 0.0), infos.get(name, {}))
        for name in seen:
            if name not in actions and name in self.env.agents:
                self._ask(name, seen[name], rewards.get(name, 0.0), infos.get(name, {}))
        self.last_seen.update(seen)
        if not self.env.agents:
            self._begin()

    def _begin(self) -> None:
        result = self.env.reset(seed=self.next_seed())
        if not isinstance(result, tuple) or len(result) != 2:
            raise EnvError("reset() of a parallel environment returns (observations, infos)", code="E0511")
        seen, infos = result
        self.last_seen = dict(seen)
        for name in self.env.agents:
            self._ask(name, seen[name], 0.0, infos.get(name, {}))


class SavedParallelAgents(KeepsState, ParallelAgents):
    """Adapts a parallel game whose state can be saved, so that a run resumes exactly."""

    not_state: ClassVar[frozenset[str]] = frozenset(
        {"numbers", "observed", "acted", "behavior_of", "behavior_specs", "decisions", "ends"}
    )


class AecAgents(PettingZooAgents):
    """Adapts a turn-based (AEC) game: the agents act one after another."""

    def reset(self) -> None:
        self._forget()
        self.env.reset(seed=self.next_seed())
        self._find_turn()

    def step(self) -> None:
        name = self.env.agent_selection
        self.env.step(self.chosen.pop(name, self.acted[name].nothing()))
        self._forget()
        self._find_turn()

    def _find_turn(self) -> None:
        """Removes agents that ended, starts a new game when all have, and finds the agent whose turn it is."""
        while True:
            if not self.env.agents:
                self.env.reset(seed=self.next_seed())
            name = self.env.agent_selection
            seen, reward, terminated, truncated, info = self.env.last()
            has_ended, is_cut = _ends(name, terminated, truncated)
            if not has_ended and not is_cut:
                self._ask(name, seen, reward, info)
                return
            self._end(name, seen, reward, interrupted=is_cut and not has_ended)
            self.env.step(None)


def _ends(name: str, terminated: Returned, truncated: Returned) -> tuple[bool, bool]:
    return (
        truth(terminated, f"agent {name!r}: step() returned terminated"),
        truth(truncated, f"agent {name!r}: step() returned truncated"),
    )
