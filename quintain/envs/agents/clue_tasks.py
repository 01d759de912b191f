"""A small task for images, recurrent policies and hybrid actions: walk to the end of a line that a clue names."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.envs.agents.tasks import Population, TaskEnv

if TYPE_CHECKING:
    from quintain.typing import Array

IMAGE_SHAPE: tuple[int, ...] = (20, 20, 3)
STEP_COST = np.float32(0.01)


class CluePopulation(Population):
    """Each agent walks from the middle of a line to one of its ends: reward 1 for the end of its clue, else -1.

    With several actions there is one line per action; an episode ends when the agent is at an end of each line, and its
    reward is the mean over the lines. A continuous action moves by at most `stride`, a discrete one by `stride`
    backwards or forwards, and every step before the last costs 0.01. The clue is 1 or -1: a number, or images that are
    filled with it. With `num_shown` the clue is visible in the first steps only and 0 afterwards, so that it must be
    remembered. Episodes are truncated after 100 steps.
    """

    max_steps: ClassVar[int] = 100
    not_state: ClassVar[frozenset[str]] = Population.not_state | {"spec"}

    def __init__(
        self,
        num_agents: int,
        seed: int,
        num_continuous: int,
        num_choices: int,
        num_images: int,
        num_shown: int,
        stride: float,
    ) -> None:
        super().__init__(num_agents, seed)
        shapes: list[tuple[int, ...]] = [IMAGE_SHAPE] * num_images or [(1,)]
        self.spec = BehaviorSpec(
            [ObservationSpec(shape, name=f"clue {number}") for number, shape in enumerate(shapes)],
            ActionSpec(num_continuous, (2,) * num_choices),
        )
        self.num_shown = num_shown
        self.stride = np.float32(stride)
        self.clue: Array = np.zeros(num_agents, np.float32)
        self.place: Array = np.zeros((num_agents, num_continuous + num_choices), np.float32)
        self.age: Array = np.zeros(num_agents, np.int64)

    def begin(self, who: Array) -> None:
        self.clue[who] = self.rng.choice(np.array([-1.0, 1.0], np.float32), int(who.sum()))
        self.place[who] = 0.0
        self.age[who] = 0

    def observe(self) -> Array:
        """Returns the clue of every agent, which `steps` writes into images."""
        return (self.clue * (self.age < self.num_shown))[:, None]

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        moves = np.concatenate([numbers, 2.0 * choices - 1.0], axis=1)
        self.place += np.clip(moves, -self.stride, self.stride).astype(np.float32)
        np.clip(self.place, -1.0, 1.0, out=self.place)
        self.age += 1
        ended: Array = np.abs(self.place).min(axis=1) >= 1.0
        self.reward[:] = np.where(ended, (self.place * self.clue[:, None]).mean(axis=1), -STEP_COST)
        return ended, ~ended & (self.age >= self.max_steps)

    def steps(self) -> tuple[DecisionSteps, TerminalSteps]:
        deciding, ended = super().steps()
        for each in (deciding, ended):
            [clue] = each.obs
            each.obs = [_filled(clue, spec.shape) for spec in self.spec.observation_specs]
        return deciding, ended


def _filled(clue: Array, shape: tuple[int, ...]) -> Array:
    rows = np.empty((len(clue), *shape), np.float32)
    rows[...] = clue.reshape(-1, *(1 for _ in shape))
    return rows


def clues(
    seed: int = 0,
    num_agents: int = 1,
    num_continuous: int = 1,
    num_choices: int = 0,
    num_images: int = 0,
    num_shown: int = CluePopulation.max_steps,
    stride: float = 0.2,
) -> TaskEnv:
    """Makes lines with a clue to the rewarded end, of behaviour Clue."""
    population = CluePopulation(num_agents, seed, num_continuous, num_choices, num_images, num_shown, stride)
    return TaskEnv({"Clue": population})
