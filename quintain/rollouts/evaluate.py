"""Plays whole episodes with a policy, apart from training: own environments, own streams, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import Env
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy, draw_noise
from quintain.rng import Rng
from quintain.rollouts.finite import FiniteGate

if TYPE_CHECKING:
    from quintain.typing import Array

_NOISE_BLOCK = 64


@dataclass(frozen=True)
class EpisodeResults:
    """Returns and lengths of the episodes that were played, in lane order."""

    returns: Array
    lengths: Array
    said: dict[str, Array] = field(default_factory=dict)
    """What the environment said of each episode at its end, such as `success`, where it said it of all."""

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())


class _LaneEpisodes:
    """The episodes that one lane has played."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.said: dict[str, list[float]] = {}

    @property
    def is_complete(self) -> bool:
        return len(self.returns) >= self.quota

    def add(self, total: float, length: int, said: dict[str, float]) -> None:
        if self.is_complete:
            return
        self.returns.append(total)
        self.lengths.append(length)
        for name, value in said.items():
            self.said.setdefault(name, []).append(value)


class Evaluator:
    """Plays the same starts every time it is asked, so that two policies meet the same episodes."""

    def __init__(self, env: Env, num_episodes: int, rng: Rng, *, on_nonfinite: str = "error") -> None:
        self.env = env
        self.on_nonfinite = on_nonfinite
        self.num_episodes = num_episodes
        self.rng = rng
        self.untouched = env.state_dict()

    def play(
        self,
        policy: Policy,
        *,
        deterministic: bool,
        should_stop: Callable[[], bool],
        num_episodes: int | None = None,
        on_step: Callable[[Env, bool], None] | None = None,
    ) -> EpisodeResults | None:
        """Plays an equal share of the episodes in every lane; returns None if asked to stop before the end.

        A quota per lane matters: taking whichever episodes finish first would prefer short ones. `on_step` is called
        at the first observation and after every step, with the environment and whether lane 0 ended its episode.
        """
        env, num_lanes, watch = self.env, self.env.num_lanes, on_step or _look_away
        total = num_episodes or self.num_episodes
        lanes = [_LaneEpisodes(len(range(lane, total, num_lanes))) for lane in range(num_lanes)]
        running_return, running_length = np.zeros(num_lanes), np.zeros(num_lanes, dtype=np.int64)
        scratch = _scratch(env, policy)
        env.load_state_dict(self.untouched)
        obs, mask, step, ended = env.reset(), env.action_mask(), 0, np.ones(num_lanes, dtype=np.bool_)
        state, gate = policy.initial_state(num_lanes), FiniteGate(env, self.on_nonfinite)
        watch(env, False)
        with torch.inference_mode():
            while not all(lane.is_complete for lane in lanes):
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
                result, _, dropped = gate.admit(env.step(policy.env_action(scratch.slots[t])))
                obs, mask, step = result.obs, result.action_mask, step + 1
                done = np.asarray(result.terminated) | np.asarray(result.truncated)
                watch(env, bool(done[0]))
                valid = True if result.valid is None else np.asarray(result.valid)
                ended = done if result.valid is None else ~np.asarray(result.valid)
                running_return += np.where(valid, np.asarray(result.reward), 0.0)
                running_length += valid
                if result.aborted is not None:
                    # What broke says nothing about the policy; the lane plays another episode in its place.
                    aborted = np.asarray(result.aborted)
                    running_return[aborted], running_length[aborted], ended = 0.0, 0, ended | aborted
                if dropped is not None:
                    running_return[dropped], running_length[dropped] = 0.0, 0
                    ended = ended | dropped
                    _refuse_to_go_on_forever(gate, total)
                for lane in np.flatnonzero(done):
                    said = _said_of(result.info or {}, int(lane))
                    lanes[lane].add(float(running_return[lane]), int(running_length[lane]), said)
                    running_return[lane], running_length[lane] = 0.0, 0
        return _results(lanes)


def _refuse_to_go_on_forever(gate: FiniteGate, num_episodes: int) -> None:
    if gate.num_dropped_episodes > 10 * num_episodes:
        raise NonFiniteError(
            f"{gate.num_dropped_episodes} episodes of an evaluation were dropped because of numbers that are not "
            f"finite. Mend the environment",
            code="E0601",
        )


def _scratch(env: Env, policy: Policy) -> Rollout:
    """Makes what the policy acts in, used again and again."""
    return Rollout(
        env.spec,
        num_lanes=env.num_lanes,
        num_steps=_NOISE_BLOCK,
        noise_size=policy.noise.size,
        num_values=policy.num_values,
        device=policy.device,
    )


def _results(lanes: list[_LaneEpisodes]) -> EpisodeResults:
    returns = np.array([value for lane in lanes for value in lane.returns])
    if not np.isfinite(returns).all():
        raise NonFiniteError(
            f"an episode of the evaluation had the return {returns[~np.isfinite(returns)][0]}. Mend the environment, "
            f"or set env.on_nonfinite to drop_episode or clamp",
            code="E0601",
        )
    lengths = np.array([value for lane in lanes for value in lane.lengths], dtype=np.int64)
    said: dict[str, list[float]] = {}
    for lane in lanes:
        for name, values in lane.said.items():
            said.setdefault(name, []).extend(values)
    # What was said of some episodes only has no mean over all of them.
    return EpisodeResults(returns, lengths, {k: np.array(v) for k, v in said.items() if len(v) == len(returns)})


def _said_of(info: dict[str, Any], lane: int) -> dict[str, float]:
    """Returns the numbers that an info dict has for one lane: `success` and everything in `metrics`."""
    named = {"success": info["success"]} if "success" in info else {}
    named |= {f"metrics/{name}": values for name, values in (info.get("metrics") or {}).items()}
    return {name: float(values[lane]) for name, values in named.items() if _is_one_per_lane(values)}


def _is_one_per_lane(values: Any) -> bool:
    shape = tuple(getattr(values, "shape", ()))
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _look_away(env: Env, has_ended: bool) -> None:
    """Watches nothing."""
