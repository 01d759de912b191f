"""A small task with hybrid actions (continuous and discrete at once), for trying trainers out and for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.tasks import Population, TaskEnv

if TYPE_CHECKING:
    from quintain.typing import Array

STRIDE = np.float32(0.25)
"""Maximum distance of one step."""
REACH = np.float32(0.15)
"""Maximum distance from the chutes at which a parcel can be dropped."""
WALK, FIRST_CHUTE = 0, 1


class CourierPopulation(Population):
    """Each agent carries a parcel of one of two kinds to two chutes: reward 1 for the right chute within reach.

    It observes the distance to the chutes and the kind. Its continuous action is the distance to walk; its discrete
    action is walking (0) or dropping the parcel into the first or the second chute (1, 2). An agent that drops a parcel
    does not move in that step and gets another one elsewhere; a miss costs 0.2. Groups of three work the same shift,
    which is truncated after some steps. The best policy delivers a parcel every three steps.
    """

    spec = BehaviorSpec([ObservationSpec((3,), name="offset, kind")], ActionSpec.create_hybrid(1, (3,)))

    def __init__(self, num_agents: int, seed: int, length: int = 20) -> None:
        super().__init__(num_agents, seed)
        self.length = length
        self.offset: Array = np.zeros(num_agents, np.float32)
        self.kind: Array = np.zeros(num_agents, np.int64)
        self.age: Array = np.zeros(num_agents, np.int64)

    def begin(self, who: Array) -> None:
        self._hand_out(who)
        self.age[who] = 0

    def _hand_out(self, who: Array) -> None:
        count = int(who.sum())
        self.offset[who] = self.rng.uniform(-1.0, 1.0, count)
        self.kind[who] = self.rng.integers(0, 2, count)

    def observe(self) -> Array:
        seen = np.zeros((len(self.ids), 3), np.float32)
        seen[:, 0] = self.offset
        seen[np.arange(len(seen)), 1 + self.kind] = 1.0
        return seen

    def group(self) -> Array:
        return 1 + np.arange(len(self.ids), dtype=np.int32) // 3

    def move(self, numbers: Array, choices: Array) -> tuple[Array, Array]:
        choice = choices[:, 0]
        walks = choice == WALK
        is_right = ~walks & (choice - FIRST_CHUTE == self.kind) & (np.abs(self.offset) <= REACH)
        self.reward[:] = np.where(walks, 0.0, np.where(is_right, 1.0, -0.2))
        self.offset -= walks * STRIDE * np.clip(numbers[:, 0], -1.0, 1.0)
        np.clip(self.offset, -1.0, 1.0, out=self.offset)
        self._hand_out(~walks)
        self.age += 1
        return np.zeros_like(walks), self.age >= self.length


def couriers(seed: int = 0, num_agents: int = 12, length: int = 20) -> TaskEnv:
    """Makes parcels to carry, of behaviour Courier."""
    return TaskEnv({"Courier": CourierPopulation(num_agents, seed, length)})
