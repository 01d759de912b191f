"""The finite gate: values of an environment that are not finite never reach statistics, buffers or the learner.

By default a rollout with such a value is refused as a whole, which costs one check per rollout. Where the run continues
(`drop_episode`, `clamp`), every step is checked as it arrives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BoxSpec, build, flatten, leaves
from quintain.envs.base import Env, StepResult
from quintain.errors import NonFiniteError, SettingsError

if TYPE_CHECKING:
    from quintain.envs.hosts.lane_rows import LaneRows
    from quintain.typing import Array, Metrics

CLAMP_LIMIT = 1e6
"""Replaces infinity where a space has no bound; NaN becomes 0."""
NUM_EVIDENCE_STEPS = 16


class Admitted(NamedTuple):
    """A step with finite values, and the lanes whose episodes are dropped."""

    result: StepResult
    is_changed: bool = False
    dropped: Array | None = None


class FiniteGate(KeepsState):
    """Checks every step, where the run continues, and clamps values or drops episodes that are not finite."""

    not_state: ClassVar[frozenset[str]] = frozenset({"env", "mode"})

    def __init__(self, env: Env, mode: str) -> None:
        if mode == "drop_episode" and not env.can_reset_lanes:
            raise SettingsError(
                "env.on_nonfinite: drop_episode needs an environment that can reset single lanes, and this one resets "
                "by itself; use clamp or error",
                code="E0223",
            )
        self.env = env
        self.mode = mode
        self.num_dropped_episodes = 0
        self.num_clamped_steps = 0

    def admit(self, result: StepResult) -> Admitted:
        """Returns the step with finite values only; in mode error, whole rollouts are checked instead."""
        if self.mode == "error":
            return Admitted(result)
        bad = self._bad_lanes(result)
        if not bad.any():
            return Admitted(result)
        if self.mode == "clamp":
            self.num_clamped_steps += int(bad.sum())
            return Admitted(self._clamped(result), is_changed=True)
        self.num_dropped_episodes += int(bad.sum())
        return Admitted(self._restarted(result, bad), is_changed=True, dropped=bad)

    def clamp_rows(self, rows: LaneRows, lanes: Array) -> None:
        """Replaces values of these lanes that are not finite where they were written; only in mode clamp."""
        if self.mode != "clamp" or not len(lanes):
            return
        spec = self.env.spec.obs
        seen, last = (build(spec, {k: v[lanes] for k, v in obs.items()}, f.OBS) for obs in (rows.obs, rows.final_obs))
        admitted = self.admit(StepResult(seen, rows.reward[lanes], rows.terminated[lanes], rows.truncated[lanes], last))
        if admitted.is_changed:
            found = admitted.result
            rows.reward[lanes] = found.reward
            for into, obs in ((rows.obs, found.obs), (rows.final_obs, found.final_obs)):
                for name, values in self._leaves(obs).items():
                    into[name][lanes] = values

    def metrics(self) -> Metrics:
        """Returns the counts of corrections; empty without any."""
        counts = {
            "rollout/dropped_episodes": self.num_dropped_episodes,
            "rollout/clamped_steps": self.num_clamped_steps,
        }
        return {name: float(count) for name, count in counts.items() if count}

    def _bad_lanes(self, result: StepResult) -> Array:
        bad: Array = ~np.isfinite(_array(result.reward))
        for rows in self._leaves(result.obs).values():
            bad = bad | _has_nonfinite(rows)
        ended = _array(result.terminated) | _array(result.truncated)
        if ended.any():
            for rows in self._leaves(result.final_obs).values():
                bad = bad | (ended & _has_nonfinite(rows))
        return bad

    def _leaves(self, obs: Any) -> dict[str, Array]:
        return {name: _array(rows) for name, rows in flatten(self.env.spec.obs, obs, f.OBS).items()}

    def _clamped(self, result: StepResult) -> StepResult:
        reward = np.nan_to_num(_array(result.reward), nan=0.0, posinf=CLAMP_LIMIT, neginf=-CLAMP_LIMIT)
        return result._replace(
            reward=reward, obs=self._clamped_obs(result.obs), final_obs=self._clamped_obs(result.final_obs)
        )

    def _clamped_obs(self, obs: Any) -> Any:
        specs, rows = leaves(self.env.spec.obs, f.OBS), self._leaves(obs)
        return build(self.env.spec.obs, {name: _clamp(rows[name], specs[name]) for name in rows}, f.OBS)

    def _restarted(self, result: StepResult, bad: Array) -> StepResult:
        obs = self.env.reset(bad)
        broken = [name for name, rows in self._leaves(obs).items() if _has_nonfinite(rows).any()]
        if broken:
            raise NonFiniteError(
                f"the environment returned an observation ({broken[0]}) that is not finite in lane "
                f"{self.env.first_lane + int(np.flatnonzero(bad)[0])} even after a reset. Fix the environment",
                code="E0601",
            )
        return result._replace(
            obs=obs,
            reward=np.where(bad, np.float32(0.0), _array(result.reward)),
            terminated=_array(result.terminated) & ~bad,
            truncated=_array(result.truncated) & ~bad,
            action_mask=None if result.action_mask is None else self.env.action_mask(),
        )


def refuse_nonfinite(rollout: Rollout, first_lane: int = 0) -> None:
    """Raises for the first observation or reward of a rollout that is NaN or infinite."""
    seen = [(name, "an observation" if name == f.OBS else f"an observation ({name})") for name in rollout.obs_names]
    for name, what in [*seen, (f.REWARD, "a reward")]:
        field = rollout.array(name)
        if field.dtype.kind == "f" and not np.isfinite(field).all():
            t, lane = (int(i) for i in np.argwhere(~np.isfinite(field))[0][:2])
            raise _error(rollout, what, lane, t, field[t, lane], first_lane)
    for name in rollout.obs_names:
        last = rollout.final.array(name)
        if last.dtype.kind == "f" and not np.isfinite(last).all():
            row = int(np.argwhere(~np.isfinite(last))[0][0])
            t, lane = (int(i) for i in np.argwhere(rollout.array(f.FINAL_INDEX) == rollout.final.start + row)[0])
            raise _error(rollout, "a last observation", lane, t, last[row], first_lane)


def refuse_empty(rollout: Rollout, *gates: FiniteGate) -> None:
    """Raises if a rollout has no valid step."""
    if any(gate.num_dropped_episodes for gate in gates) and not rollout.array(f.VALID)[:-1].any():
        raise NonFiniteError(
            "every episode of a rollout was dropped because of values that are not finite. Fix the environment",
            code="E0601",
        )


def _error(rollout: Rollout, what: str, lane: int, t: int, found: Any, first_lane: int) -> NonFiniteError:
    index = tuple(int(i) for i in np.argwhere(~np.isfinite(found))[0]) if np.ndim(found) else ()
    place = f"{found[index]} at index {index}" if index else f"{found}"
    number = int(rollout.array(f.LANE)[t, lane]) if f.LANE in rollout.storage else first_lane + lane
    after = f" after action {_action(rollout, lane, t if 'observation' not in what or 'last' in what else t - 1)}"
    return NonFiniteError(
        f"the environment returned {what} that is not finite in lane {number}, step {t} of the rollout: "
        f"{place}{after}. "
        f"Fix the environment, or set env.on_nonfinite to drop_episode or clamp",
        code="E0601",
        evidence=_evidence(rollout, lane, t),
    )


def _action(rollout: Rollout, lane: int, t: int) -> str:
    if t < 0:
        return "of the rollout before"
    chosen = {name: rollout.array(name)[t, lane].tolist() for name in leaves(rollout.spec.action, f.ACTION)}
    return str(chosen.get(f.ACTION, chosen))


def _evidence(rollout: Rollout, lane: int, t: int) -> dict[str, Array]:
    """Returns the lane's last steps before the fault."""
    names = [*rollout.obs_names, *leaves(rollout.spec.action, f.ACTION), f.REWARD, f.TERMINATED, f.TRUNCATED]
    first = max(0, t - NUM_EVIDENCE_STEPS + 1)
    return {name: rollout.array(name)[first : t + 1, lane].copy() for name in names}


def _clamp(rows: Array, leaf: Any) -> Array:
    if rows.dtype.kind != "f" or not isinstance(leaf, BoxSpec):
        return rows
    low, high = (np.clip(bound, -CLAMP_LIMIT, CLAMP_LIMIT) for bound in leaf.bounds())
    mended = np.clip(np.nan_to_num(rows, nan=0.0, posinf=np.inf, neginf=-np.inf), low, high)
    return np.where(np.isfinite(rows), rows, mended)


def _has_nonfinite(rows: Array) -> Array:
    if rows.dtype.kind != "f":
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray(~np.isfinite(rows).reshape(len(rows), -1).all(axis=1))


def _array(values: Any) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
