"""Environments and a policy whose every number is known beforehand, so that tests can compute what must come out.

An observation is (lane, episode, step of the episode). Rewards and values are linear in these three numbers, with
coefficients that float32 holds exactly, and chosen so that an episode's last observation and the next one's first have
different values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec
from quintain.envs.base import Env
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.vector import VectorEnv
from quintain.policies.base import Policy
from quintain.policies.heads import NoiseSpec

OBSERVATIONS = Box(-np.inf, np.inf, (3,), np.float32)
MODES = ("lanes", "NextStep", "SameStep", "Disabled")
ENDS = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


class Episode(NamedTuple):
    """How many steps an episode has and how it ends."""

    length: int
    end: str


Script = Sequence[Sequence[Episode]]
"""The episodes of each lane; a lane that played them all begins again with the first."""


def reward_at(lane: float, episode: float, step: float) -> float:
    return 1.0 + lane + 0.5 * step - 0.25 * episode


def value_at(lane: float, episode: float, step: float) -> float:
    return 1.0 + 0.125 * lane + 1.0 * episode + 0.25 * step


@dataclass
class Row:
    """What one slot of one lane must hold after collecting."""

    obs: tuple[int, int, int]
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    first: bool = False
    valid: bool = True
    final_obs: tuple[int, int, int] | None = None


def expected_rows(lane: int, episodes: Sequence[Episode], num_rows: int, mode: str) -> list[Row]:
    """Plays one lane's script by hand, with the extra row that next-step autoreset puts between episodes."""
    rows: list[Row] = []
    episode = 0
    while len(rows) < num_rows:
        length, end = episodes[episode % len(episodes)]
        for step in range(length):
            row = Row((lane, episode, step), reward_at(lane, episode, step), first=step == 0)
            if step == length - 1:
                row.terminated, row.truncated = ENDS[end]
                row.final_obs = (lane, episode, length)
            rows.append(row)
        if mode == "NextStep":
            rows.append(Row((lane, episode, length), valid=False))
        episode += 1
    return rows[:num_rows]


class ScriptedEnv(gymnasium.Env[Any, Any]):
    """One lane of a script as a plain Gymnasium environment."""

    observation_space = OBSERVATIONS
    action_space = Discrete(2)

    def __init__(self, lane: int, episodes: Sequence[Episode]) -> None:
        self.lane, self.episodes = lane, episodes
        self.episode, self.steps = -1, 0
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        # The same seed again is the same episode again.
        is_repeated = seed is not None and seed == self.seed
        self.episode, self.steps, self.seed = self.episode + (not is_repeated), 0, seed
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = reward_at(self.lane, self.episode, self.steps)
        self.steps += 1
        length, end = self.episodes[self.episode % len(self.episodes)]
        terminated, truncated = ENDS[end] if self.steps == length else (False, False)
        return self._obs(), reward, terminated, truncated, {}

    def _obs(self) -> Any:
        return np.array([self.lane, self.episode, self.steps], np.float32)


class ScriptedVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """A script as a vector environment in one of Gymnasium's three autoreset modes.

    It hands out its own arrays and goes on using them, which the contract of vector environments allows.
    """

    single_observation_space = OBSERVATIONS
    single_action_space = Discrete(2)

    def __init__(self, script: Script, mode: str) -> None:
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode(mode)}
        self.num_envs = len(script)
        self.num_episodes = np.array([len(episodes) for episodes in script])
        size = self.num_episodes.max()
        played = [[episodes[i % len(episodes)] for i in range(size)] for episodes in script]
        self.lengths = np.array([[episode.length for episode in lane] for lane in played])
        self.terminates = np.array([[ENDS[episode.end][0] for episode in lane] for lane in played])
        self.truncates = np.array([[ENDS[episode.end][1] for episode in lane] for lane in played])
        self.state = np.zeros((self.num_envs, 3), np.float32)
        self.rewards = np.zeros(self.num_envs)
        self.terminated = np.zeros(self.num_envs, np.bool_)
        self.truncated = np.zeros(self.num_envs, np.bool_)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        if mask is None:
            self.state[:] = [[lane, 0, 0] for lane in range(self.num_envs)]
            mask = np.ones(self.num_envs, np.bool_)
        else:
            self._next_episode(mask)
        self.terminated[mask] = self.truncated[mask] = False
        return self.state, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        mode = self.metadata["autoreset_mode"].value
        waiting = (self.terminated | self.truncated) if mode == "NextStep" else np.zeros(self.num_envs, np.bool_)
        self.rewards[:] = [0.0 if waiting[i] else reward_at(*self.state[i]) for i in range(self.num_envs)]
        self._next_episode(waiting)
        self.state[~waiting, 2] += 1
        lanes = np.arange(self.num_envs)
        episode = self.state[:, 1].astype(np.int64) % self.num_episodes
        ends = (self.state[:, 2] == self.lengths[lanes, episode]) & ~waiting
        self.terminated[:] = ends & self.terminates[lanes, episode]
        self.truncated[:] = ends & self.truncates[lanes, episode]
        info: dict[str, Any] = {}
        if mode == "SameStep" and ends.any():
            info["final_obs"] = np.full(self.num_envs, None, object)
            for lane in np.flatnonzero(ends):
                info["final_obs"][lane] = self.state[lane].copy()
            self._next_episode(ends)
        return self.state, self.rewards, self.terminated, self.truncated, info

    def _next_episode(self, mask: Any) -> None:
        self.state[mask, 1] += 1
        self.state[mask, 2] = 0


def scripted_env(script: Script, mode: str) -> Env:
    """Makes the script an environment of ours, by lanes or by a vector environment in an autoreset mode."""
    if mode != "lanes":
        return VectorEnv("script", ScriptedVectorEnv(script, mode), Rng(0))
    factories = [
        lambda lane=lane, episodes=episodes: ScriptedEnv(lane, episodes) for lane, episodes in enumerate(script)
    ]
    return LaneEnv("script", factories, Rng(0))


class LinearPolicy(Policy):
    """Values observations by `value_at` and tosses a coin for the action."""

    def __init__(self, spec: BehaviorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.noise = NoiseSpec(num_uniform=1)
        self.weight = nn.Parameter(torch.tensor([0.125, 1.0, 0.25]))
        self.bias = nn.Parameter(torch.tensor(1.0))
        self.logits = nn.Parameter(torch.zeros(2))

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        slot.action.copy_(slot.noise[:, 0] >= 0.5)
        slot.log_prob.fill_(float(np.log(0.5)))
        slot.value.copy_(self.value_of(slot.obs))

    def value_of(
        self, obs: torch.Tensor, state: torch.Tensor | None = None, first: torch.Tensor | None = None
    ) -> torch.Tensor:
        return obs @ self.weight + self.bias

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        log_probs = torch.log_softmax(self.logits, dim=0)
        entropy = -(log_probs.exp() * log_probs).sum().expand(len(batch[f.ACTION]))
        return {
            f.LOG_PROB: log_probs[batch[f.ACTION]],
            f.ENTROPY: entropy,
            f.VALUE: self.value_of(batch[f.OBS]),
        }


def never() -> bool:
    """Never asks anything to stop."""
    return False


def ignore_episodes(returns: Any, lengths: Any) -> None:
    """Listens to no episodes."""
