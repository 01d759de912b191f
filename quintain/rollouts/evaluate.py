"""Plays whole episodes with a policy, apart from training: own environments, own streams, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.policies.base import Policy, draw_noise
from quintain.rng import Rng

if TYPE_CHECKING:
    from quintain.typing import Array

_NOISE_BLOCK = 64


@dataclass(frozen=True)
class EpisodeResults:
    """Returns and lengths of the episodes that were played, in lane order."""

    returns: Array
    lengths: Array

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())


class Evaluator:
    """Plays the same starts every time it is asked, so that two policies meet the same episodes."""

    def __init__(self, env: Env, num_episodes: int, rng: Rng) -> None:
        self.env = env
        self.num_episodes = num_episodes
        self.rng = rng
        self.untouched = env.state_dict()

    def play(self, policy: Policy, *, deterministic: bool, should_stop: Callable[[], bool]) -> EpisodeResults | None:
        """Plays an equal share of the episodes in every lane; returns None if asked to stop before the end.

        A quota per lane matters: taking whichever episodes finish first would prefer short ones.
        """
        env, lanes = self.env, self.env.num_lanes
        quota = np.array([len(range(lane, self.num_episodes, lanes)) for lane in range(lanes)])
        returns: list[list[float]] = [[] for _ in range(lanes)]
        lengths: list[list[int]] = [[] for _ in range(lanes)]
        running_return, running_length = np.zeros(lanes), np.zeros(lanes, dtype=np.int64)
        scratch = Rollout(
            env.spec, num_lanes=lanes, num_steps=_NOISE_BLOCK, noise_size=policy.noise.size, device=policy.device
        )
        env.load_state_dict(self.untouched)
        obs, mask, step, ended = env.reset(), env.action_mask(), 0, np.ones(lanes, dtype=np.bool_)
        state = policy.initial_state(lanes)
        with torch.inference_mode():
            while any(len(done) < share for done, share in zip(returns, quota, strict=True)):
                if should_stop():
                    return None
                t = step % _NOISE_BLOCK
                if t == 0 and not deterministic:
                    draw_noise(scratch, policy.noise, self.rng, first_step=step)
                scratch.write_obs(t, obs)
                scratch.write(f.FIRST, t, ended)
                if mask is not None:
                    scratch.write(f.ACTION_MASK, t, mask)
                policy.act(scratch.slots[t], state, deterministic=deterministic)
                result = env.step(policy.env_action(scratch.slots[t]))
                obs, mask, step = result.obs, result.action_mask, step + 1
                done = np.asarray(result.terminated) | np.asarray(result.truncated)
                valid = True if result.valid is None else np.asarray(result.valid)
                ended = done if result.valid is None else ~np.asarray(result.valid)
                running_return += np.where(valid, np.asarray(result.reward), 0.0)
                running_length += valid
                if result.aborted is not None:
                    # What broke says nothing about the policy; the lane plays another episode in its place.
                    aborted = np.asarray(result.aborted)
                    running_return[aborted], running_length[aborted], ended = 0.0, 0, ended | aborted
                for lane in np.flatnonzero(done):
                    if len(returns[lane]) < quota[lane]:
                        returns[lane].append(float(running_return[lane]))
                        lengths[lane].append(int(running_length[lane]))
                    running_return[lane], running_length[lane] = 0.0, 0
        return EpisodeResults(np.concatenate(returns), np.concatenate(lengths).astype(np.int64))
