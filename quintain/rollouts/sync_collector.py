"""Steps one environment with one policy, all lanes together, and fills one rollout.

Order of writing in step t: the policy writes action, log-probability and value into slot t, then the environment
steps, then reward, ends and the next observation are written. A rollout can be left after any step and continued, also
in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import Env, StepResult
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy, draw_noise
from quintain.rng import Rng
from quintain.state import KeepsState

if TYPE_CHECKING:
    from quintain.typing import Array

EpisodeListener = Callable[["Array", "Array"], None]
"""Receives the returns and lengths of the episodes that just ended."""


class SyncCollector(KeepsState):
    """Collects in lockstep; its state is where each lane stands."""

    # The policy is the trainer's to save. The last observation is in slot T of the block, or in `obs` between blocks.
    not_state: ClassVar[frozenset[str]] = frozenset({"policy", "rng", "on_episodes", "seconds"})

    def __init__(self, env: Env, policy: Policy, rng: Rng, on_episodes: EpisodeListener) -> None:
        self.env = env
        self.policy = policy
        self.rng = rng
        self.on_episodes = on_episodes
        self.obs: Array = np.array(torch.as_tensor(env.reset()).cpu().numpy())
        self.first: Array = np.ones(env.num_lanes, dtype=np.bool_)
        self.episode_return: Array = np.zeros(env.num_lanes, dtype=np.float64)
        self.episode_length: Array = np.zeros(env.num_lanes, dtype=np.int64)
        self.lane_step = 0
        self.cursor = 0
        self.seconds = {"act": 0.0, "env": 0.0}

    def collect(self, rollout: Rollout, version: int, should_stop: Callable[[], bool]) -> bool:
        """Fills the rest of the rollout; returns False if it was asked to stop before the last step."""
        with torch.inference_mode():
            while self.cursor < rollout.num_steps:
                if should_stop():
                    return False
                # After the question: a rollout that was stopped before its first step has not begun.
                if self.cursor == 0:
                    self._begin(rollout, version)
                self._step(rollout, self.cursor)
                self.cursor += 1
            self._finish(rollout)
        return True

    def _begin(self, rollout: Rollout, version: int) -> None:
        rollout.begin(rollout.sequence + 1, version)
        draw_noise(rollout, self.policy.noise, self.rng, first_step=self.lane_step)
        rollout.write(f.OBS, 0, self.obs)
        rollout.write(f.FIRST, 0, self.first)

    def _step(self, rollout: Rollout, t: int) -> None:
        slot = rollout.slots[t]
        started = perf_counter()
        self.policy.act(slot)
        action = self.policy.env_action(slot.action)
        acted = perf_counter()
        result = self.env.step(action)
        stepped = perf_counter()
        self.seconds["act"] += acted - started
        self.seconds["env"] += stepped - acted
        rollout.write(f.REWARD, t, result.reward)
        rollout.write(f.TERMINATED, t, result.terminated)
        rollout.write(f.TRUNCATED, t, result.truncated)
        rollout.write(f.OBS, t + 1, result.obs)
        self._follow_episodes(rollout, t, result)

    def _follow_episodes(self, rollout: Rollout, t: int, result: StepResult) -> None:
        reward, done = _array(result.reward), _array(result.terminated) | _array(result.truncated)
        self.episode_return += reward
        self.episode_length += 1
        rollout.write(f.FIRST, t + 1, done)
        if result.valid is not None:
            self._skip_resets(rollout, t, _array(result.valid), done)
        if done.any():
            rollout.write(f.DONE, t, done)
            lanes = np.flatnonzero(done)
            rollout.add_final_obs(t, lanes, _array(result.final_obs)[lanes])
            self.on_episodes(self.episode_return[lanes], self.episode_length[lanes])
            self.episode_return[lanes] = 0.0
            self.episode_length[lanes] = 0

    def _skip_resets(self, rollout: Rollout, t: int, valid: Array, done: Array) -> None:
        """Marks the steps that only reset a lane: the episode starts after them, not at the end before them."""
        rollout.write(f.VALID, t, valid)
        rollout.write(f.FIRST, t + 1, ~valid)
        self.episode_return[~valid] = 0.0
        self.episode_length[~valid] = 0

    def _finish(self, rollout: Rollout) -> None:
        """Values what the last step and the ended episodes are bootstrapped from, and hands over to the next block."""
        last = rollout.num_steps
        slot = rollout.slots[last]
        slot.value.copy_(self.policy.value_of(slot.obs))
        self._value_truncated(rollout)
        _refuse_nonfinite(rollout)
        np.copyto(self.obs, rollout.array(f.OBS)[last])
        np.copyto(self.first, rollout.array(f.FIRST)[last])
        self.lane_step += last
        self.cursor = 0

    def _value_truncated(self, rollout: Rollout) -> None:
        cut = rollout.storage[f.TRUNCATED] & ~rollout.storage[f.TERMINATED]
        if cut.any():
            rows = rollout.storage[f.FINAL_INDEX][cut].long()
            rollout.storage[f.FINAL_VALUE][cut] = self.policy.value_of(rollout.final_obs[rows])


def _array(values: object) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()  # type: ignore[attr-defined]  # a tensor


def _refuse_nonfinite(rollout: Rollout) -> None:
    for name, where in ((f.OBS, "an observation"), (f.REWARD, "a reward")):
        field = rollout.array(name)
        if field.dtype.kind == "f" and not np.isfinite(field).all():
            t, lane = (int(i) for i in np.argwhere(~np.isfinite(field))[0][:2])
            raise _nonfinite(where, lane, t, field[t, lane])
    last = rollout.final_array()
    if last.dtype.kind == "f" and not np.isfinite(last).all():
        row = int(np.argwhere(~np.isfinite(last))[0][0])
        t, lane = (int(i) for i in np.argwhere(rollout.array(f.FINAL_INDEX) == row)[0])
        raise _nonfinite("a last observation", lane, t, last[row])


def _nonfinite(what: str, lane: int, t: int, found: Any) -> NonFiniteError:
    return NonFiniteError(
        f"the environment returned {what} that is not finite in lane {lane}, step {t} of the rollout: {found}. "
        f"Mend the environment, or wrap it to replace such values",
        code="E0601",
    )
