"""Whole episodes of lanes, for an evaluation: an equal share in every lane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import EPISODE, SUCCESS, Env, StepResult
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy, draw_noise
from quintain.rollouts.episode_results import EpisodeResults
from quintain.rollouts.finite import FiniteGate

if TYPE_CHECKING:
    from quintain.typing import Array

_NOISE_BLOCK = 64


class LanePlay:
    """Episodes of one behaviour that begin in fixed lanes.

    Each lane has a quota: taking whichever episodes finish first would prefer short ones.
    """

    def __init__(
        self,
        env: Env,
        policies: Mapping[str, Policy],
        num_episodes: Mapping[str, int],
        rng: Rng,
        *,
        deterministic: bool,
        limit: int | None,
        on_nonfinite: str,
        watch: Callable[[Env, bool], None],
    ) -> None:
        [(self.behavior, self.total)] = num_episodes.items()
        self.env, self.policy, self.rng = env, policies[self.behavior], rng
        self.deterministic, self.watch = deterministic, watch
        self.tally = _Tally(self.total, env.num_lanes, limit)
        self.scratch = _scratch(env, self.policy)
        self.num_steps = 0
        self.obs, self.mask = env.reset(), env.action_mask()
        self.ended: Array = np.ones(env.num_lanes, dtype=np.bool_)
        self.state, self.gate = self.policy.initial_state(env.num_lanes), FiniteGate(env, on_nonfinite)

    @torch.inference_mode()
    def step(self) -> None:
        """Acts once in all lanes."""
        env, scratch, t = self.env, self.scratch, self.num_steps % _NOISE_BLOCK
        if t == 0 and not self.deterministic:
            draw_noise(scratch, self.policy.noise, self.rng, first_step=self.num_steps)
        scratch.write_obs(t, self.obs)
        scratch.write(f.FIRST, t, self.ended)
        if self.mask is not None:
            scratch.write(f.ACTION_MASK, t, self.mask)
        self.policy.act(scratch.slots[t], self.state, deterministic=self.deterministic)
        result, _, dropped = self.gate.admit(env.step(self.policy.env_action(scratch.slots[t])))
        if dropped is not None:
            _refuse_to_go_on_forever(self.gate, self.total)
        self.obs, self.mask, self.num_steps = result.obs, result.action_mask, self.num_steps + 1
        self.ended, cut = self.tally.add(result, dropped)
        self.watch(env, self.tally.has_first_ended)
        if cut.any():
            if env.can_reset_lanes:
                self.obs, self.mask, self.ended = env.reset(cut), env.action_mask(), self.ended | cut
            else:
                self.tally.play_no_more(cut)

    @property
    def is_complete(self) -> bool:
        return self.tally.is_complete

    @property
    def num_played(self) -> int:
        return self.tally.num_played

    def results(self) -> dict[str, EpisodeResults]:
        return {self.behavior: self.tally.results()}


class _LaneEpisodes:
    """The completed episodes of one lane."""

    def __init__(self, quota: int) -> None:
        self.quota = quota
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.said: dict[str, list[float]] = {}
        self.num_cut = 0

    @property
    def is_complete(self) -> bool:
        return len(self.returns) >= self.quota

    def add(self, total: float, length: int, said: dict[str, float], *, is_cut: bool = False) -> None:
        if self.is_complete:
            return
        self.num_cut += is_cut
        self.returns.append(total)
        self.lengths.append(length)
        for name, value in said.items():
            self.said.setdefault(name, []).append(value)


class _Tally:
    """The episodes of all lanes: completed ones, and the progress of current ones."""

    def __init__(self, num_episodes: int, num_lanes: int, limit: int | None) -> None:
        self.lanes = [_LaneEpisodes(len(range(lane, num_episodes, num_lanes))) for lane in range(num_lanes)]
        self.limit = limit
        self.total: Array = np.zeros(num_lanes)
        self.length: Array = np.zeros(num_lanes, dtype=np.int64)
        self.has_first_ended = False

    @property
    def is_complete(self) -> bool:
        return all(lane.is_complete for lane in self.lanes)

    @property
    def num_played(self) -> int:
        return sum(len(lane.returns) for lane in self.lanes)

    def add(self, result: StepResult, dropped: Array | None) -> tuple[Array, Array]:
        """Records a step; returns which lanes begin an episode, and which have one that is too long."""
        done = np.asarray(result.terminated) | np.asarray(result.truncated)
        valid = True if result.valid is None else np.asarray(result.valid)
        ended = done if result.valid is None else ~np.asarray(result.valid)
        self.total += np.where(valid, np.asarray(result.reward), 0.0)
        self.length += valid
        # What broke says nothing about the policy; the lane plays another episode in its place.
        for lost in (result.aborted, dropped):
            if lost is not None:
                self.total[np.asarray(lost)], self.length[np.asarray(lost)] = 0.0, 0
                ended = ended | np.asarray(lost)
        cut = np.zeros_like(done) if self.limit is None else ~done & (self.length >= self.limit)
        self.has_first_ended = bool(done[0] or cut[0])
        for lane in np.flatnonzero(done | cut):
            said = _said_of(result.info or {}, int(lane))
            total, length = float(self.total[lane]), int(self.length[lane])
            self.lanes[lane].add(total, length, said, is_cut=bool(cut[lane]))
            self.total[lane], self.length[lane] = 0.0, 0
        return ended, cut

    def play_no_more(self, lanes: Array) -> None:
        """Ends the share of lanes that cannot be reset: their next steps would belong to the same episode."""
        for lane in np.flatnonzero(lanes):
            self.lanes[lane].quota = len(self.lanes[lane].returns)

    def results(self) -> EpisodeResults:
        return _results(self.lanes, self.limit)


def _refuse_to_go_on_forever(gate: FiniteGate, num_episodes: int) -> None:
    if gate.num_dropped_episodes > 10 * num_episodes:
        raise NonFiniteError(
            f"{gate.num_dropped_episodes} episodes of an evaluation were dropped because of numbers that are not "
            f"finite. Mend the environment",
            code="E0601",
        )


def _scratch(env: Env, policy: Policy) -> Rollout:
    """Allocates the memory in which the policy acts."""
    return Rollout(
        env.spec,
        policy.declare_fields(),
        num_lanes=env.num_lanes,
        num_steps=_NOISE_BLOCK,
        device=policy.device,
    )


def _results(lanes: list[_LaneEpisodes], limit: int | None) -> EpisodeResults:
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
    of_all = {name: np.array(values) for name, values in said.items() if len(values) == len(returns)}
    return EpisodeResults(returns, lengths, of_all, sum(lane.num_cut for lane in lanes), limit)


def _said_of(info: dict[str, Any], lane: int) -> dict[str, float]:
    """Returns the metrics of an info dict for one lane: `success`, the entries of `metrics`, and those of ends."""
    named = {"success": info["success"]} if "success" in info else {}
    named |= {f"metrics/{name}": values for name, values in (info.get("metrics") or {}).items()}
    ended = {"success" if k == SUCCESS else f"info/{k}": v for k, v in (info.get(EPISODE) or {}).items()}
    found = {name: float(values[lane]) for name, values in (named | ended).items() if _is_one_per_lane(values)}
    return {name: value for name, value in found.items() if not (name in ended and value != value)}


def _is_one_per_lane(values: Any) -> bool:
    shape = tuple(getattr(values, "shape", ()))
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)
