"""An environment that plays given episodes regardless of actions, so that a test knows every value in advance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import numpy as np

from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec, box, discrete
from quintain.envs.base import Env, StepResult

if TYPE_CHECKING:
    import torch

    from quintain.typing import Array, LaneMask


class Episode(NamedTuple):
    """The reward of each step of an episode, and how it ends."""

    rewards: Sequence[float]
    end: Literal["terminated", "truncated"] = "terminated"


class ScriptedEnv(Env):
    """Plays one list of episodes per lane, over and over; an observation is (lane, episode, step of the episode).

    Example:
        >>> env = ScriptedEnv([Episode([1.0, 2.0])])
        >>> env.reset().tolist()
        [[0.0, 0.0, 0.0]]
        >>> import torch
        >>> result = env.step(torch.zeros(1)), env.step(torch.zeros(1))
        >>> result[1].final_obs.tolist(), result[1].obs.tolist()
        ([[0.0, 0.0, 2.0]], [[0.0, 1.0, 0.0]])
    """

    # The script cannot change; the actions are for the test to look at and decide nothing.
    not_state: ClassVar[frozenset[str]] = frozenset({"script", "actions"})

    def __init__(self, *script: Sequence[Episode], action: BoxSpec | DiscreteSpec | None = None) -> None:
        self.script = script
        self.num_lanes = len(script)
        self.spec = BehaviorSpec(obs=box(3), action=action or discrete(2))
        self.episode: Array = np.zeros(self.num_lanes, dtype=np.int64)
        self.step_of_episode: Array = np.zeros(self.num_lanes, dtype=np.int64)
        self.has_started = False
        self.actions: list[Array] = []

    def reset(self, lanes: LaneMask | None = None) -> Array:
        mask = np.ones(self.num_lanes, dtype=np.bool_) if lanes is None else np.asarray(lanes)
        if self.has_started:
            self.episode[mask] += 1
        self.step_of_episode[mask] = 0
        self.has_started = True
        return self._obs()

    def step(self, action: torch.Tensor) -> StepResult:
        self.actions.append(action.cpu().numpy().copy())
        playing = [episodes[self.episode[lane] % len(episodes)] for lane, episodes in enumerate(self.script)]
        reward = [episode.rewards[at] for episode, at in zip(playing, self.step_of_episode, strict=True)]
        self.step_of_episode += 1
        is_over = self.step_of_episode == [len(episode.rewards) for episode in playing]
        terminated = is_over & [episode.end == "terminated" for episode in playing]
        final_obs = self._obs()
        obs = self.reset(is_over) if is_over.any() else final_obs
        return StepResult(obs, np.asarray(reward, np.float32), terminated, is_over & ~terminated, final_obs)

    def _obs(self) -> Array:
        columns = (np.arange(self.num_lanes), self.episode, self.step_of_episode)
        return np.stack(columns, axis=1).astype(np.float32)
