"""Whole episodes of agents that come and go, for an evaluation: the first that begin of each behaviour."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv
from quintain.errors import EnvError, NonFiniteError
from quintain.policies.base import Policy
from quintain.rollouts.agent_assembler import Episodes
from quintain.rollouts.agent_collector import AgentCollector
from quintain.rollouts.agent_world import AgentWorld
from quintain.rollouts.episode_results import EpisodeResults

if TYPE_CHECKING:
    from quintain.typing import Array

MAX_EVAL_STEPS = 1_000_000
"""Limit of environment steps of an evaluation without another limit, for episodes that do not end."""
_HORIZON = 16
"""Horizon of the trajectories, which are dropped."""
DROPPED = -1
"""Marks the length of a dropped episode."""


class AgentPlay:
    """The first episodes that begin of each behaviour, not the first that end: those would be the short ones."""

    def __init__(
        self,
        env: AgentEnv,
        policies: Mapping[str, Policy],
        num_episodes: Mapping[str, int],
        rng: Rng,
        *,
        deterministic: bool,
        limit: int | None,
        watch: Callable[[AgentEnv, bool], None],
    ) -> None:
        env.reset()
        self.limit, self.watch = limit, watch
        self.tallies = {name: Tally(count, limit) for name, count in num_episodes.items()}
        acting = rng.child("acting")
        self.collectors = {
            name: AgentCollector(policies[name], _HORIZON, acting.child(name), lambda returns, lengths: None)
            for name in env.specs
        }
        for collector in self.collectors.values():
            collector.is_deterministic = deterministic
        for name, tally in self.tallies.items():
            self.collectors[name].on_numbered = tally.add
            self.collectors[name].on_dropped = tally.drop
        self.world = AgentWorld(env, self.collectors)

    def step(self) -> None:
        """Steps the environment once, with the actions of all behaviours."""
        world = self.world
        if self.limit is None and world.num_steps >= MAX_EVAL_STEPS:
            raise EnvError(f"episodes did not end within {MAX_EVAL_STEPS} steps of the environment", code="E0511")
        world.play(1, lambda: False)
        # Where many agents live, no episode is the end of a video.
        self.watch(world.env, False)
        for name, tally in self.tallies.items():
            tally.cut(self.collectors[name])

    @property
    def num_steps(self) -> int:
        return self.world.num_steps

    @property
    def is_complete(self) -> bool:
        return all(tally.is_complete for tally in self.tallies.values())

    @property
    def num_played(self) -> int:
        return sum(tally.num_played for tally in self.tallies.values())

    def results(self) -> dict[str, EpisodeResults]:
        return {name: tally.results() for name, tally in self.tallies.items()}


class Tally:
    """The first episodes of one behaviour, in the order in which they began."""

    def __init__(self, num_episodes: int, limit: int | None) -> None:
        self.returns: Array = np.zeros(num_episodes)
        self.lengths: Array = np.zeros(num_episodes, np.int64)
        self.limit = limit
        self.num_cut = 0

    def add(self, played: Episodes) -> None:
        """Records completed episodes; one that was truncated before is not changed."""
        counts = played.numbers < len(self.returns)
        numbers = played.numbers[counts]
        is_new = self.lengths[numbers] == 0
        self.returns[numbers[is_new]] = played.returns[counts][is_new]
        self.lengths[numbers[is_new]] = played.lengths[counts][is_new]

    def drop(self, numbers: Array) -> None:
        """Drops episodes with values that are not finite."""
        numbers = numbers[numbers < len(self.lengths)]
        # One that was cut before the fault stays as it was.
        self.lengths[numbers[self.lengths[numbers] == 0]] = DROPPED

    def cut(self, collector: AgentCollector) -> None:
        """Truncates episodes that are too long, with their return so far."""
        if self.limit is None:
            return
        assembler = collector.assembler
        is_open = np.zeros(len(assembler.episode_length), np.bool_)
        is_open[assembler.deciding] = True
        is_long = is_open & (assembler.episode_length >= self.limit)
        if not is_long.any():
            return
        self.drop(assembler.episode_number[is_long & assembler.is_spoiled])
        long, before = np.flatnonzero(is_long), self.num_played
        self.add(
            Episodes(assembler.episode_number[long], assembler.episode_return[long], assembler.episode_length[long])
        )
        self.num_cut += self.num_played - before

    @property
    def num_played(self) -> int:
        return int(np.count_nonzero(self.lengths))

    @property
    def is_complete(self) -> bool:
        return self.num_played == len(self.lengths)

    def results(self) -> EpisodeResults:
        is_sound = self.lengths != DROPPED
        if not is_sound.any():
            raise NonFiniteError(
                "every episode of an evaluation was dropped because of values that are not finite. Fix the environment",
                code="E0601",
            )
        returns, lengths = self.returns[is_sound], self.lengths[is_sound]
        return EpisodeResults(returns, lengths, num_cut=self.num_cut, max_episode_steps=self.limit)
