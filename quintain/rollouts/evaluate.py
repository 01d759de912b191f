"""Plays whole episodes with a policy, apart from training: own environments, own streams, nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import Env, StepResult
from quintain.errors import NonFiniteError
from quintain.policies.base import Policy, draw_noise
from quintain.rollouts.finite import FiniteGate

if TYPE_CHECKING:
    from quintain.typing import Array

_NOISE_BLOCK = 64
MAX_EPISODE_STEPS = 27_000
"""Steps after which an evaluation cuts an episode unless told otherwise: those of half an hour of an Atari game."""
_QUIET_SECONDS, _STEPS_BETWEEN_LOOKS = 10.0, 64


@dataclass(frozen=True)
class EpisodeResults:
    """Returns and lengths of the episodes that were played, in lane order."""

    returns: Array
    lengths: Array
    said: dict[str, Array] = field(default_factory=dict)
    """What the environment said of each episode at its end, such as `success`, where it said it of all."""
    num_cut: int = 0
    """Episodes that did not end by themselves; they count with what they had when they were cut."""
    max_episode_steps: int | None = None
    """Where they were cut."""

    @property
    def mean_return(self) -> float:
        return float(self.returns.mean())

    @property
    def std_return(self) -> float:
        return float(self.returns.std())

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())

    @property
    def cut_note(self) -> str:
        """Says how many episodes were cut, if any were."""
        if not self.num_cut:
            return ""
        episodes = f"{self.num_cut} of {len(self.returns)} episodes"
        return f"{episodes} did not end and were cut after {self.max_episode_steps:,} steps"


class _LaneEpisodes:
    """The episodes that one lane has played."""

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


class Evaluator:
    """Plays the same starts every time it is asked, so that two policies meet the same episodes."""

    def __init__(
        self,
        env: Env,
        num_episodes: int,
        rng: Rng,
        *,
        on_nonfinite: str = "error",
        max_episode_steps: int | None = MAX_EPISODE_STEPS,
    ) -> None:
        self.env = env
        self.on_nonfinite = on_nonfinite
        self.max_episode_steps = max_episode_steps
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
        tell: Callable[[str], None] | None = None,
    ) -> EpisodeResults | None:
        """Plays an equal share of the episodes in every lane; returns None if asked to stop before the end.

        A quota per lane matters: taking whichever episodes finish first would prefer short ones. `on_step` is called
        at the first observation and after every step, with the environment and whether lane 0 ended its episode.
        `tell` gets a line now and then while episodes are long.
        """
        env, num_lanes, watch = self.env, self.env.num_lanes, on_step or _look_away
        total, limit = num_episodes or self.num_episodes, self.max_episode_steps
        tally, progress = _Tally(total, num_lanes, limit), PlayProgress(total, limit, tell)
        scratch = _scratch(env, policy)
        env.load_state_dict(self.untouched)
        obs, mask, step, ended = env.reset(), env.action_mask(), 0, np.ones(num_lanes, dtype=np.bool_)
        state, gate = policy.initial_state(num_lanes), FiniteGate(env, self.on_nonfinite)
        watch(env, False)
        with torch.inference_mode():
            while not tally.is_complete:
                if should_stop():
                    return None
                if step % _STEPS_BETWEEN_LOOKS == 0:
                    progress.look(step, tally.num_played)
                t = step % _NOISE_BLOCK
                if t == 0 and not deterministic:
                    draw_noise(scratch, policy.noise, self.rng, first_step=step)
                scratch.write_obs(t, obs)
                scratch.write(f.FIRST, t, ended)
                if mask is not None:
                    scratch.write(f.ACTION_MASK, t, mask)
                policy.act(scratch.slots[t], state, deterministic=deterministic)
                result, _, dropped = gate.admit(env.step(policy.env_action(scratch.slots[t])))
                if dropped is not None:
                    _refuse_to_go_on_forever(gate, total)
                obs, mask, step = result.obs, result.action_mask, step + 1
                ended, cut = tally.add(result, dropped)
                watch(env, tally.has_first_ended)
                if cut.any():
                    if env.can_reset_lanes:
                        obs, mask, ended = env.reset(cut), env.action_mask(), ended | cut
                    else:
                        tally.play_no_more(cut)
        return tally.results()


class _Tally:
    """The episodes of all lanes: those that were played, and how far the present ones are."""

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
        """Takes note of a step; returns which lanes begin an episode, and which have one that is too long."""
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
        """Ends the share of lanes that cannot be reset: what follows there would be the rest of the same episode."""
        for lane in np.flatnonzero(lanes):
            self.lanes[lane].quota = len(self.lanes[lane].returns)

    def results(self) -> EpisodeResults:
        return _results(self.lanes, self.limit)


class PlayProgress:
    """Tells how far an evaluation is, if it takes long; the clock decides nothing else."""

    def __init__(self, num_episodes: int, max_episode_steps: int | None, tell: Callable[[str], None] | None) -> None:
        self.num_episodes = num_episodes
        self.max_episode_steps = max_episode_steps
        self.tell = tell
        self.told_at = time.monotonic()

    def look(self, num_steps: int, num_played: int) -> None:
        """Tells how many episodes were played in so many steps, unless it was told a moment ago."""
        if self.tell is None or time.monotonic() - self.told_at < _QUIET_SECONDS:
            return
        self.told_at = time.monotonic()
        limit = "" if self.max_episode_steps is None else f"; an episode is cut after {self.max_episode_steps:,}"
        self.tell(f"note: evaluating, {num_played} of {self.num_episodes} episodes after {num_steps:,} steps{limit}")


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
    """Returns the numbers that an info dict has for one lane: `success` and everything in `metrics`."""
    named = {"success": info["success"]} if "success" in info else {}
    named |= {f"metrics/{name}": values for name, values in (info.get("metrics") or {}).items()}
    return {name: float(values[lane]) for name, values in named.items() if _is_one_per_lane(values)}


def _is_one_per_lane(values: Any) -> bool:
    shape = tuple(getattr(values, "shape", ()))
    return len(shape) == 1 or (len(shape) == 2 and shape[1] == 1)


def _look_away(env: Env, has_ended: bool) -> None:
    """Watches nothing."""
