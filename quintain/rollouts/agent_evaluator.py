"""Plays whole episodes of agents that come and go, apart from training: an environment and streams of its own."""

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
from quintain.rollouts.evaluate import MAX_EPISODE_STEPS, EpisodeResults, PlayProgress

if TYPE_CHECKING:
    from quintain.typing import Array

MAX_EVAL_STEPS = 1_000_000
"""Steps of the environment after which an evaluation without a limit gives up on episodes that do not end."""
_HORIZON = 16
"""Steps of the trajectories that are assembled and dropped."""
DROPPED = -1
"""Stands for the length of an episode that is left out."""


class AgentEvaluator:
    """Plays the same starts every time it is asked, if the environment has a state; all behaviours act together."""

    def __init__(
        self,
        env: AgentEnv,
        rng: Rng,
        prepare: Callable[[AgentEnv], None],
        *,
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
    ) -> None:
        """Makes one; `prepare` may change the environment's parameters before every evaluation."""
        self.env = env
        self.rng = rng
        self.prepare = prepare
        self.max_episode_steps = max_episode_steps
        self.untouched = env.state_dict() if env.exactness == "exact" else None

    def play(
        self,
        policies: Mapping[str, Policy],
        num_episodes: Mapping[str, int],
        *,
        deterministic: bool,
        should_stop: Callable[[], bool],
        on_step: Callable[[AgentEnv, bool], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, EpisodeResults] | None:
        """Plays the first so many episodes that begin of each behaviour named; None if asked to stop before the end.

        Not the first that end: those would be the short ones. `on_step` is called at the first observations and after
        every step, with the environment and False: where many agents live, no episode is the end of it.
        """
        if self.untouched is not None:
            self.env.load_state_dict(self.untouched)
        self.prepare(self.env)
        self.env.reset()
        tallies = {name: Tally(count, self.max_episode_steps) for name, count in num_episodes.items()}
        acting = self.rng.child("acting")
        collectors = {
            name: AgentCollector(policies[name], _HORIZON, acting.child(name), lambda returns, lengths: None)
            for name in self.env.specs
        }
        for collector in collectors.values():
            collector.is_deterministic = deterministic
        for name, tally in tallies.items():
            collectors[name].on_numbered = tally.add
            collectors[name].on_dropped = tally.drop
        world = AgentWorld(self.env, collectors)
        progress = PlayProgress(sum(num_episodes.values()), self.max_episode_steps, tell)
        if on_step is not None:
            on_step(self.env, False)
        while not all(tally.is_complete for tally in tallies.values()):
            if should_stop():
                return None
            if self.max_episode_steps is None and world.num_steps >= MAX_EVAL_STEPS:
                raise EnvError(f"episodes did not end within {MAX_EVAL_STEPS} steps of the environment", code="E0511")
            progress.look(world.num_steps, sum(tally.num_played for tally in tallies.values()))
            world.play(1, should_stop)
            if on_step is not None:
                on_step(self.env, False)
            for name, tally in tallies.items():
                tally.cut(collectors[name])
        return {name: tally.results() for name, tally in tallies.items()}

    def close(self) -> None:
        self.env.close()


class Tally:
    """The first episodes of one behaviour, by when they began."""

    def __init__(self, num_episodes: int, limit: int | None) -> None:
        self.returns: Array = np.zeros(num_episodes)
        self.lengths: Array = np.zeros(num_episodes, np.int64)
        self.limit = limit
        self.num_cut = 0

    def add(self, played: Episodes) -> None:
        """Takes note of episodes that ended; one that was cut before stays as it was."""
        counts = played.numbers < len(self.returns)
        numbers = played.numbers[counts]
        is_new = self.lengths[numbers] == 0
        self.returns[numbers[is_new]] = played.returns[counts][is_new]
        self.lengths[numbers[is_new]] = played.lengths[counts][is_new]

    def drop(self, numbers: Array) -> None:
        """Leaves out episodes in which something was not finite: they say nothing about the policy."""
        numbers = numbers[numbers < len(self.lengths)]
        # One that was cut before the fault stays as it was.
        self.lengths[numbers[self.lengths[numbers] == 0]] = DROPPED

    def cut(self, collector: AgentCollector) -> None:
        """Takes note of episodes that are too long, with the return that they have so far."""
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
                "every episode of an evaluation was dropped because of numbers that are not finite. Mend the "
                "environment",
                code="E0601",
            )
        returns, lengths = self.returns[is_sound], self.lengths[is_sound]
        return EpisodeResults(returns, lengths, num_cut=self.num_cut, max_episode_steps=self.limit)
