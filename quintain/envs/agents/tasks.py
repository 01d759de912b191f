"""Small vectorized tasks for agents that come and go: a ball to balance, and gates to choose.

For trying trainers out and for tests. `quintain train ppo agents/quintain.envs.agents.tasks:balance_ball` runs one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.core.state import KeepsState
from quintain.envs.agents.samplers import Sampler
from quintain.envs.agents.specs import ActionSpec, ActionTuple, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps

if TYPE_CHECKING:
    from quintain.typing import Array

__all__ = ["balance_ball", "ball_and_gates", "gates"]


class Population(KeepsState, ABC):
    """All agents of one behaviour; an agent that ends is replaced by another with a new id."""

    spec: BehaviorSpec
    tunable: ClassVar[frozenset[str]] = frozenset()
    """Parameters of the task that can be set: attributes with one row per agent."""
    not_state: ClassVar[frozenset[str]] = frozenset({"samplers"})

    def __init__(self, num_agents: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.num_met = num_agents
        self.ids: Array = np.arange(num_agents, dtype=np.int32)
        self.reward: Array = np.zeros(num_agents, np.float32)
        self.decides: Array = np.ones(num_agents, np.bool_)
        self.ended: dict[str, Array] = {}
        self.everybody = np.ones(num_agents, np.bool_)
        self.samplers: dict[str, Sampler] = {}

    @abstractmethod
    def begin(self, who: Array) -> None:
        """Starts new episodes for the masked agents."""

    @abstractmethod
    def observe(self) -> Array:
        """Returns the observations of all agents."""

    @abstractmethod
    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        """Applies the actions of agents that decided, writes rewards, and returns which ended and which were cut."""

    def mask(self) -> list[Array] | None:
        """Returns the forbidden options of every agent, by branch."""
        return None

    def group(self) -> Array:
        """Returns the group of every agent."""
        return np.zeros(len(self.ids), np.int32)

    def reset(self) -> None:
        self.reward[:] = 0.0
        self.decides[:] = True
        self._begin(self.everybody)
        self._note_ends(~self.everybody, ~self.everybody)

    def step(self, numbers: Array, choices: Array) -> None:
        self.reward[self.decides] = 0.0
        ended, interrupted = self.move(numbers, choices)
        self._note_ends(ended | interrupted, interrupted)
        who = ended | interrupted
        if who.any():
            count = int(who.sum())
            self.ids[who] = np.arange(self.num_met, self.num_met + count, dtype=np.int32)
            self.num_met += count
            self.reward[who] = 0.0
            self.decides[who] = True
            self._begin(who)

    def _begin(self, who: Array) -> None:
        for name, sampler in self.samplers.items():
            getattr(self, name)[who] = sampler.draw(self.rng, int(who.sum()))
        self.begin(who)

    def _note_ends(self, who: Array, interrupted: Array) -> None:
        self.ended = {
            "obs": self.observe()[who],
            "reward": self.reward[who],
            "interrupted": interrupted[who],
            "ids": self.ids[who],
            "group": self.group()[who],
        }

    def steps(self) -> tuple[DecisionSteps, TerminalSteps]:
        who, mask = self.decides, self.mask()
        allowed = None if mask is None else [branch[who] for branch in mask]
        ended = self.ended
        return (
            DecisionSteps([self.observe()[who]], self.reward[who], self.ids[who], allowed, self.group()[who]),
            TerminalSteps([ended["obs"]], ended["reward"], ended["interrupted"], ended["ids"], ended["group"]),
        )


class BallPopulation(Population):
    """Each agent tilts a dome in two directions to keep a ball on it: reward 0.1 per step, -1 for losing it."""

    spec = BehaviorSpec([ObservationSpec((6,), name="tilt, place, speed")], ActionSpec.create_continuous(2))
    tunable = frozenset({"push"})

    def __init__(self, num_agents: int, seed: int, max_steps: int = 200) -> None:
        super().__init__(num_agents, seed)
        self.max_steps = max_steps
        self.push: Array = np.ones(num_agents, np.float32)
        self.state: Array = np.zeros((num_agents, 3, 2), np.float32)
        """[agents, (tilt, place, speed), direction]"""
        self.age: Array = np.zeros(num_agents, np.int64)

    def begin(self, who: Array) -> None:
        self.state[who] = self.rng.uniform(-0.4, 0.4, (int(who.sum()), 3, 2))
        self.state[who, 0] = 0.0
        self.age[who] = 0

    def observe(self) -> Array:
        return self.state.reshape(len(self.ids), 6).copy()

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        tilt, place, speed = self.state[:, 0], self.state[:, 1], self.state[:, 2]
        np.clip(tilt + 0.1 * np.clip(numbers, -1.0, 1.0), -0.35, 0.35, out=tilt)
        speed += 0.05 * (6.0 * tilt + self.push[:, None] * place)
        place += 0.05 * speed
        self.age += 1
        lost = np.abs(place).max(axis=1) > 1.0
        self.reward[:] = np.where(lost, np.float32(-1.0), np.float32(0.1))
        return lost, ~lost & (self.age >= self.max_steps)


class GatePopulation(Population):
    """Each agent sees a gate (0, 1 or 2) and a bell (0 or 1) and has to choose both; reward 0.5 for each.

    Every other agent decides only at every second step, and one wrong gate is sometimes masked out. Episodes end at
    random, with probability 0.1 at each decision.
    """

    spec = BehaviorSpec([ObservationSpec((4,), name="gate, bell")], ActionSpec.create_discrete((3, 2)))

    def __init__(self, num_agents: int, seed: int) -> None:
        super().__init__(num_agents, seed)
        self.gate: Array = np.zeros(num_agents, np.int64)
        self.bell: Array = np.zeros(num_agents, np.int64)
        self.closed: Array = np.full(num_agents, -1, np.int64)
        self.time = 0

    def begin(self, who: Array) -> None:
        count = int(who.sum())
        self.gate[who] = self.rng.integers(0, 3, count)
        self.bell[who] = self.rng.integers(0, 2, count)
        wrong = (self.gate[who] + 1) % 3
        self.closed[who] = np.where(self.rng.uniform(size=count) < 0.3, wrong, -1)

    def observe(self) -> Array:
        seen = np.zeros((len(self.ids), 4), np.float32)
        seen[np.arange(len(seen)), self.gate] = 1.0
        seen[:, 3] = self.bell
        return seen

    def mask(self) -> list[Array]:
        gates = np.arange(3)[None, :] == self.closed[:, None]
        return [gates, np.zeros((len(self.ids), 2), np.bool_)]

    def group(self) -> Array:
        return 1 + np.arange(len(self.ids), dtype=np.int32) % 2

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        who = self.decides.copy()
        assert not (choices[:, 0] == self.closed)[who].any(), "a forbidden gate was chosen"
        right = 0.5 * (choices[:, 0] == self.gate) + 0.5 * (choices[:, 1] == self.bell)
        self.reward[who] = right[who]
        ended = who & (self.rng.uniform(size=len(who)) < 0.1)
        self.begin(who & ~ended)
        self.time += 1
        slow = np.arange(len(who)) % 2 == 1
        self.decides[:] = ~slow | (self.time % 2 == 0)
        return ended, np.zeros_like(ended)


class TaskEnv(KeepsState):
    """One or several populations in one environment, with the methods of ML-Agents' BaseEnv."""

    def __init__(self, populations: Mapping[str, Population]) -> None:
        self.populations = dict(populations)
        self.actions = {name: self._no_action(name) for name in populations}

    @property
    def behavior_specs(self) -> dict[str, BehaviorSpec]:
        return {name: population.spec for name, population in self.populations.items()}

    def _no_action(self, name: str) -> tuple[Array, Array]:
        population = self.populations[name]
        actions = population.spec.action_spec.empty_action(len(population.ids))
        return actions.continuous, actions.discrete

    def reset(self) -> None:
        for population in self.populations.values():
            population.reset()

    def set_actions(self, behavior_name: str, action: ActionTuple) -> None:
        """Takes the actions of the agents that requested a decision."""
        who = self.populations[behavior_name].decides
        numbers, choices = self.actions[behavior_name]
        numbers[who], choices[who] = action.continuous, action.discrete

    def step(self) -> None:
        for name, population in self.populations.items():
            population.step(*self.actions[name])

    def get_steps(self, behavior_name: str) -> tuple[DecisionSteps, TerminalSteps]:
        return self.populations[behavior_name].steps()

    def set_parameters(self, values: Mapping[str, float]) -> None:
        """Sets parameters of the task, such as `push`, which accelerates a ball off the middle of its dome."""
        for name, value in values.items():
            for population in self._tuned(name):
                population.samplers.pop(name, None)
                getattr(population, name)[:] = value

    def set_samplers(self, samplers: Mapping[str, Sampler]) -> None:
        """Sets samplers from which parameters are drawn at the start of each agent's episode."""
        for name, sampler in samplers.items():
            for population in self._tuned(name):
                population.samplers[name] = sampler

    def _tuned(self, name: str) -> list[Population]:
        tuned = [each for each in self.populations.values() if name in each.tunable]
        if not tuned:
            known = sorted({key for each in self.populations.values() for key in each.tunable})
            raise ValueError(f"there is no parameter {name}; there are {', '.join(known) or 'none'}")
        return tuned

    def close(self) -> None:
        """Does nothing: there are no resources to free."""


def balance_ball(seed: int = 0, num_agents: int = 12, max_steps: int = 200) -> TaskEnv:
    """Makes balls to balance, of behaviour Ball."""
    return TaskEnv({"Ball": BallPopulation(num_agents, seed, max_steps)})


def gates(seed: int = 0, num_agents: int = 12) -> TaskEnv:
    """Makes gates to choose, of behaviour Gate."""
    return TaskEnv({"Gate": GatePopulation(num_agents, seed)})


def ball_and_gates(seed: int = 0, num_agents: int = 12, max_steps: int = 200) -> TaskEnv:
    """Makes both in one environment."""
    return TaskEnv({"Ball": BallPopulation(num_agents, seed, max_steps), "Gate": GatePopulation(num_agents, seed + 1)})
