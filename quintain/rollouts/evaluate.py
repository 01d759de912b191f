"""Plays whole episodes with trained policies, apart from training: own environments, own random streams."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from quintain.core.rng import Rng
from quintain.envs.agents.env import AgentEnv
from quintain.policies.base import Policy
from quintain.rollouts.agent_play import AgentPlay
from quintain.rollouts.episode_results import EpisodeResults as EpisodeResults
from quintain.rollouts.lane_play import LanePlay

if TYPE_CHECKING:
    from quintain.typing import TrainingEnv

MAX_EPISODE_STEPS = 27_000
"""Default time limit of an episode in evaluations: half an hour of an Atari game."""
_QUIET_SECONDS, _STEPS_BETWEEN_LOOKS = 10.0, 64


class Evaluator:
    """Plays the same starts every time it is asked, so that two policies meet the same episodes.

    Of agents that holds if their environment has a state; all their behaviours act together.
    """

    def __init__(
        self,
        env: TrainingEnv,
        num_episodes: int,
        rng: Rng,
        *,
        on_nonfinite: str = "error",
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
        prepare: Callable[[AgentEnv], None] | None = None,
    ) -> None:
        """Makes one; `prepare` may change parameters of an environment of agents before every evaluation."""
        self.env = env
        self.on_nonfinite = on_nonfinite
        self.max_episode_steps = max_episode_steps
        self.num_episodes = num_episodes
        self.rng = rng
        self.prepare = prepare
        has_state = not isinstance(env, AgentEnv) or env.exactness == "exact"
        self.untouched = env.state_dict() if has_state else None

    def play(
        self,
        policies: Mapping[str, Policy],
        *,
        deterministic: bool,
        should_stop: Callable[[], bool],
        num_episodes: int | None = None,
        only: str | None = None,
        on_step: Callable[[Any, bool], None] | None = None,
        tell: Callable[[str], None] | None = None,
    ) -> dict[str, EpisodeResults] | None:
        """Plays so many episodes of each behaviour, or `only` of one; returns None if asked to stop before the end.

        `on_step` is called at the first observation and after every step, with the environment and whether lane 0
        ended its episode. `tell` gets a line now and then while episodes are long.
        """
        env, limit = self.env, self.max_episode_steps
        if self.untouched is not None:
            env.load_state_dict(self.untouched)
        if self.prepare is not None:
            self.prepare(env)
        counts = dict.fromkeys(policies if only is None else [only], num_episodes or self.num_episodes)
        watch = on_step or _look_away
        play: LanePlay | AgentPlay
        if isinstance(env, AgentEnv):
            play = AgentPlay(env, policies, counts, self.rng, deterministic=deterministic, limit=limit, watch=watch)
        else:
            play = LanePlay(
                env,
                policies,
                counts,
                self.rng,
                deterministic=deterministic,
                limit=limit,
                on_nonfinite=self.on_nonfinite,
                watch=watch,
            )
        progress = PlayProgress(sum(counts.values()), limit, tell)
        watch(env, False)
        while not play.is_complete:
            if should_stop():
                return None
            if play.num_steps % _STEPS_BETWEEN_LOOKS == 0:
                progress.look(play.num_steps, play.num_played)
            play.step()
        return play.results()

    def close(self) -> None:
        self.env.close()


class PlayProgress:
    """Reports the progress of a long evaluation; the clock decides nothing else."""

    def __init__(self, num_episodes: int, max_episode_steps: int | None, tell: Callable[[str], None] | None) -> None:
        self.num_episodes = num_episodes
        self.max_episode_steps = max_episode_steps
        self.tell = tell
        self.told_at = time.monotonic()

    def look(self, num_steps: int, num_played: int) -> None:
        """Reports the number of completed episodes, at most once in a while."""
        if self.tell is None or time.monotonic() - self.told_at < _QUIET_SECONDS:
            return
        self.told_at = time.monotonic()
        limit = "" if self.max_episode_steps is None else f"; an episode is cut after {self.max_episode_steps:,}"
        self.tell(f"note: evaluating, {num_played} of {self.num_episodes} episodes after {num_steps:,} steps{limit}")


def _look_away(env: Any, has_ended: bool) -> None:
    """Does nothing."""
