"""Atari games as agents usually see them (Mnih et al. 2015, Machado et al. 2018): the wrappers of `preset: atari`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from quintain.envs.gym.protocols import Returned
from quintain.envs.hosts.lane_values import CONTINUES
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.typing import Action, Array, Info, Keywords

NOOP, FIRE = "NOOP", "FIRE"
GAME_RETURN = "game_return"
"""Entry of info at the end of a game: the sum of its rewards, before their signs are taken."""


class AtariFrames(gymnasium.Wrapper[Returned, Returned, Returned, Returned]):
    """Begins with no-ops, repeats each action for some frames, and shows the maximum of the last two, grey and small.

    A game that waits for FIRE, at its begin or after a lost life, is started: a policy that was trained on lives which
    begin by themselves would wait forever in an evaluation of whole games.
    """

    def __init__(
        self, env: gymnasium.Env[Array, Action], noop_max: int = 30, frame_skip: int = 4, size: int = 84
    ) -> None:
        super().__init__(env)
        base: Returned = env.unwrapped
        if not hasattr(base, "ale") or getattr(base, "_frameskip", 1) != 1:
            raise SettingsError(
                "preset: atari is for ids of ale-py, such as ALE/Pong-v5, with frameskip=1: it skips frames itself",
                code="E0205",
            )
        self.ale = base.ale
        self.noop_max, self.frame_skip = noop_max, frame_skip
        meanings = base.get_action_meanings()
        self.noop = meanings.index(NOOP)
        self.fire = meanings.index(FIRE) if meanings[1:2] == [FIRE] and len(meanings) >= 3 else None
        height, width = self.ale.getScreenDims()
        self.rows, self.columns = _area_weights(height, size), _area_weights(width, size).T.copy()
        self.screens: Array = np.zeros((2, height, width), np.uint8)
        self.lives = 0
        self.must_fire = False
        self.game_return = 0.0
        self.observation_space = gymnasium.spaces.Box(0, 255, (size, size), np.uint8)

    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> tuple[Array, Info]:
        _, info = self.env.reset(seed=seed, options=options)
        self.game_return = 0.0
        num_noops = int(self.unwrapped.np_random.integers(1, self.noop_max + 1)) if self.noop_max else 0
        for _ in range(num_noops):
            _, reward, terminated, truncated, info = self.env.step(self.noop)
            self.game_return += float(reward)
            if terminated or truncated:
                _, info = self.env.reset(options=options)
                self.game_return = 0.0
        self.lives = self.ale.lives()
        self.must_fire = self.fire is not None
        self.screens[0] = 0
        self._see(1)
        return self._frame(), info

    def step(self, action: Action) -> tuple[Array, float, bool, bool, Info]:
        total, terminated, truncated = 0.0, False, False
        info: Info = {}
        chosen, self.must_fire = (self.fire if self.must_fire else action), False
        for number in range(self.frame_skip):
            _, reward, terminated, truncated, info = self.env.step(chosen)
            total += float(reward)
            if number >= self.frame_skip - 2:
                self._see(number - self.frame_skip + 2)
            if terminated or truncated:
                break
        self.game_return += total
        lives = self.ale.lives()
        self.must_fire = self.fire is not None and lives < self.lives
        self.lives = lives
        info = {**info, GAME_RETURN: self.game_return} if terminated or truncated else info
        return self._frame(), total, bool(terminated), bool(truncated), info

    def _see(self, place: int) -> None:
        self.ale.getScreenGrayscale(self.screens[place])

    def _frame(self) -> Array:
        seen = self.screens.max(axis=0).astype(np.float32)
        frame: Array = np.rint(self.rows @ seen @ self.columns)
        return frame.astype(np.uint8)


class EpisodicLife(gymnasium.Wrapper[Returned, Returned, Returned, Returned]):
    """Ends an episode at every lost life; the game goes on in the next episode, from the same screen."""

    def __init__(self, env: gymnasium.Env[Array, Action]) -> None:
        super().__init__(env)
        self.lives = 0
        self.waiting: tuple[Array, Info] | None = None
        """The observation after a lost life, with which the next episode begins."""

    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> tuple[Array, Info]:
        begun, self.waiting = self.waiting, None
        obs, info = self.env.reset(seed=seed, options=options) if begun is None else begun
        self.lives = int(info["lives"])
        return obs, info

    def step(self, action: Action) -> tuple[Array, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        lives = int(info["lives"])
        if 0 < lives < self.lives and not (terminated or truncated):
            self.waiting, terminated = (obs, info), True
            info = {**info, CONTINUES: True}
        self.lives = lives
        return obs, float(reward), bool(terminated), bool(truncated), info


class SignReward(gymnasium.RewardWrapper[Returned, Returned]):
    """Replaces each reward by its sign, so that games of all scales are learned with the same settings."""

    def reward(self, reward: Returned) -> float:
        return float(np.sign(reward))


def _area_weights(num_pixels: int, size: int) -> Array:
    """Returns the matrix [size, num_pixels] that averages pixels over equal areas."""
    edges = np.linspace(0.0, num_pixels, size + 1)
    starts, ends = edges[:-1, None], edges[1:, None]
    pixels = np.arange(num_pixels)
    covered = np.minimum(ends, pixels + 1) - np.maximum(starts, pixels)
    weights: Array = (covered.clip(0.0) * size / num_pixels).astype(np.float32)
    return weights
