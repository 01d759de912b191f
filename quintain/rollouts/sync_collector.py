"""Steps one vectorized environment with one policy, and fills one rollout.

Order of writing in step t: the policy writes action, log-probability and value to time step t, then the environment
steps, then reward, ends and the next observation are written, by the environment itself if it can. A rollout can be
interrupted after any step and continued, also in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.masks import mask_rows
from quintain.data.rollout import Rollout
from quintain.data.spec import flatten, leaves, require_choices
from quintain.envs.base import Env, StepResult, WritesRollout
from quintain.errors import EnvError
from quintain.policies.base import Policy
from quintain.rollouts.bootstrap import value_last, value_truncated
from quintain.rollouts.finite import Admitted, FiniteGate, refuse_empty, refuse_nonfinite
from quintain.rollouts.noise_ahead import NoiseAhead
from quintain.rollouts.step_metrics import StepMetrics

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics, State

EpisodeListener = Callable[["Array", "Array"], None]
"""Callback with the returns and lengths of completed episodes."""
StepListener = Callable[[Any, "dict[str, Any]"], None]
"""Callback with each step as a TensorDict of batch [N] that shares the rollout's memory, and the environment's info."""


def never() -> bool:
    return False


def _ignore(returns: Array, lengths: Array) -> None:
    """Ignores episodes."""


class SyncCollector(KeepsState):
    """Collects in lockstep; its state covers the position of each lane."""

    # The policy is the trainer's to save. The last observation is in slot T of the block, or in `obs` between blocks.
    not_state: ClassVar[frozenset[str]] = frozenset(
        {"policy", "on_episodes", "on_step", "seconds", "starts_fresh", "writing_env", "shared", "steps", "noise"}
    )
    saved_counts: ClassVar[frozenset[str]] = frozenset({"lane_step", "cursor"})
    saved_shapes: ClassVar[frozenset[str]] = frozenset(
        {"obs", "mask", "policy_state", "first", "episode_return", "episode_length", "playing"}
    )

    def __init__(
        self,
        env: Env,
        policy: Policy,
        rng: Rng = Rng(0),  # noqa: B008  # frozen
        on_episodes: EpisodeListener = _ignore,
        *,
        starts_fresh: bool = False,
        on_nonfinite: str = "error",
    ) -> None:
        self.env = env
        self.policy = policy
        self.noise = NoiseAhead(policy.noise, rng)
        self.on_episodes = on_episodes
        self.on_step: StepListener | None = None
        self.writing_env = env if isinstance(env, WritesRollout) else None
        self.shared: Rollout | None = None
        self.steps: list[Any] = []
        self.gate = FiniteGate(env, on_nonfinite)
        self.step_metrics = StepMetrics()
        self.obs = {
            name: np.array(torch.as_tensor(rows).cpu().numpy())
            for name, rows in flatten(env.spec.obs, env.reset(), f.OBS).items()
        }
        mask = env.action_mask()
        self.mask: Array | None = None if mask is None else np.array(_array(mask))
        self.policy_state = policy.initial_state(env.num_lanes)
        self.first: Array = np.ones(env.num_lanes, dtype=np.bool_)
        self.episode_return: Array = np.zeros(env.num_lanes, dtype=np.float64)
        self.episode_length: Array = np.zeros(env.num_lanes, dtype=np.int64)
        self.starts_fresh = starts_fresh
        self.playing: Array = np.ones(env.num_lanes, dtype=np.bool_)
        self.lane_step = 0
        self.cursor = 0
        self.seconds = {"act": 0.0, "env": 0.0}

    def load_state_dict(self, state: State) -> None:
        for name, leaf in leaves(self.env.spec.obs, f.OBS).items():
            require_choices(leaf, name, state["obs"][name])
        # Where each rollout begins with new episodes, the mask after the last one is not looked at.
        if self.mask is not None and not self.starts_fresh:
            mask_rows(self.env.spec.action, np.asarray(state["mask"]), np.ones(self.env.num_lanes, np.bool_))
        super().load_state_dict(state)

    def collect(self, rollout: Rollout, version: int = 0, should_stop: Callable[[], bool] = never) -> bool:
        """Fills the rest of the rollout; returns False if it was asked to stop before the last step."""
        with torch.inference_mode():
            self._share(rollout)
            while self.cursor < rollout.num_steps:
                if should_stop():
                    return False
                # After the question: a rollout that was stopped before its first step has not begun.
                if self.cursor == 0:
                    self._begin(rollout, version)
                self._step(rollout, self.cursor)
                self.cursor += 1
                if not self.playing.any():
                    self._leave_rest_out(rollout)
            self._finish(rollout)
        return True

    def _share(self, rollout: Rollout) -> None:
        """Passes the rollout's memory to an environment that writes it, and prepares views for callbacks."""
        if rollout is not self.shared:
            self.shared, self.steps = rollout, []
            if self.writing_env is not None:
                self.writing_env.set_rollout_buffer(rollout.td())
        if self.writing_env is not None:
            self.writing_env.current_rollout_step = self.cursor
        if self.on_step is not None and not self.steps:
            shared = rollout.td()
            self.steps = [shared[:, t] for t in range(rollout.num_steps)]

    def _begin(self, rollout: Rollout, version: int) -> None:
        # The first rollout begins where the lanes were just reset.
        if self.starts_fresh and self.lane_step > 0:
            self.start_episodes()
        rollout.begin(rollout.sequence + 1, version)
        self.noise.fill(rollout, self.lane_step, self.env.first_lane)
        for name, rows in self.obs.items():
            rollout.write(name, 0, rows)
        rollout.write(f.FIRST, 0, self.first)
        rollout.policy_state.copy_(self.policy_state)
        if self.mask is not None:
            rollout.write(f.ACTION_MASK, 0, self.mask)

    def _step(self, rollout: Rollout, t: int) -> None:
        self._take_in(rollout, t, self._admitted(rollout, self.env.step, self._act(rollout, t)))

    def _act(self, rollout: Rollout, t: int) -> Any:
        slot = rollout.slots[t]
        started = perf_counter()
        self.policy.act(slot, self.policy_state)
        action = self.policy.env_action(slot)
        self.seconds["act"] += perf_counter() - started
        return action

    def _take_in(self, rollout: Rollout, t: int, admitted: Admitted) -> None:
        """Writes the result of a step, and updates episode statistics."""
        result = admitted.result
        if self.writing_env is None or admitted.is_changed:
            rollout.write(f.REWARD, t, result.reward)
            rollout.write(f.TERMINATED, t, result.terminated)
            rollout.write(f.TRUNCATED, t, result.truncated)
            rollout.write_obs(t + 1, result.obs)
        if result.action_mask is not None:
            rollout.write(f.ACTION_MASK, t + 1, result.action_mask)
        self._follow_episodes(rollout, t, result)
        if admitted.dropped is not None:
            self._drop_episodes(rollout, t, admitted.dropped)
        if result.info:
            self.step_metrics.add(result.info)
        if self.on_step is not None:
            self.on_step(self.steps[t], result.info or {})

    def _admitted(self, rollout: Rollout, step: Callable[..., StepResult], *action: Any) -> Admitted:
        started = perf_counter()
        try:
            result = step(*action)
        except EnvError:
            # An environment often fails because of a number it returned itself some steps before.
            refuse_nonfinite(rollout, self.env.first_lane)
            raise
        admitted = self.gate.admit(result)
        self.seconds["env"] += perf_counter() - started
        return admitted

    def _follow_episodes(self, rollout: Rollout, t: int, result: StepResult) -> None:
        reward, done = _array(result.reward), _array(result.terminated) | _array(result.truncated)
        self.episode_return += reward
        self.episode_length += 1
        rollout.write(f.FIRST, t + 1, done)
        if result.valid is not None:
            self._skip_resets(rollout, t, _array(result.valid), done)
        if self.starts_fresh:
            rollout.write(f.VALID, t, self.playing)
            done = done & self.playing
            self.playing &= ~done
            # An environment that writes for itself does not know which lanes have played their one episode.
            rollout.write(f.DONE, t, done)
        if result.aborted is not None:
            self._drop_aborted(rollout, t, _array(result.aborted), done)
        if done.any():
            rollout.write(f.DONE, t, done)
            lanes = np.flatnonzero(done)
            rows = {k: _array(v)[lanes] for k, v in flatten(self.env.spec.obs, result.final_obs, f.OBS).items()}
            rollout.add_final_obs(t, lanes, rows, self.policy_state)
            self.on_episodes(self.episode_return[lanes], self.episode_length[lanes])
            self.episode_return[lanes] = 0.0
            self.episode_length[lanes] = 0

    def _skip_resets(self, rollout: Rollout, t: int, valid: Array, done: Array) -> None:
        """Marks steps that only reset a lane: the episode starts after them, not at the end before them."""
        rollout.write(f.VALID, t, valid)
        rollout.write(f.FIRST, t + 1, ~valid)
        self.episode_return[~valid] = 0.0
        self.episode_length[~valid] = 0

    def _drop_aborted(self, rollout: Rollout, t: int, aborted: Array, done: Array) -> None:
        """Drops the step in which an environment broke; the one before it is bootstrapped from its next observation.

        Where whole episodes are compared there is no critic for a bootstrap, so the truncated episode is dropped too.
        """
        for lane in np.flatnonzero(aborted):
            rollout.storage[f.VALID][0 if self.starts_fresh else t : t + 1, int(lane)] = False
        rollout.write(f.FIRST, t + 1, done | aborted)
        self.episode_return[aborted] = 0.0
        self.episode_length[aborted] = 0

    def _drop_episodes(self, rollout: Rollout, t: int, dropped: Array) -> None:
        """Drops the episodes of these lanes, as far as they are in this rollout; new ones began after them."""
        first, valid, done = (rollout.array(name) for name in (f.FIRST, f.VALID, f.DONE))
        for lane in np.flatnonzero(dropped):
            begun = int(np.flatnonzero(first[: t + 1, lane])[-1]) if first[: t + 1, lane].any() else 0
            valid[begun : t + 1, lane] = False
            done[t, lane] = False
            first[t + 1, lane] = True
        if not rollout.arrays:
            for name, rows in ((f.FIRST, first), (f.VALID, valid), (f.DONE, done)):
                rollout.storage[name].copy_(torch.from_numpy(rows))
        self.episode_return[dropped] = 0.0
        self.episode_length[dropped] = 0
        if self.starts_fresh:
            self.playing &= ~dropped

    def start_episodes(self) -> None:
        """Starts a new episode in every lane; truncated episodes report no return."""
        assert self.cursor == 0, "episodes are cut between rollouts only"
        self._stand_at(self.env.reset())
        self.first.fill(True)
        self.playing.fill(True)
        self.episode_return.fill(0.0)
        self.episode_length.fill(0)

    def begin_anew(self, states: Sequence[State]) -> None:
        """Starts new episodes in all lanes, at a lane step that none of these collectors reached."""
        self._stand_at(self.env.begin_anew([state["env"] for state in states]))
        self.lane_step = max(state["lane_step"] + state["cursor"] for state in states)

    def _stand_at(self, obs: Any) -> None:
        """Stores the first observations of episodes."""
        for name, rows in flatten(self.env.spec.obs, obs, f.OBS).items():
            np.copyto(self.obs[name], _array(rows))
        mask = self.env.action_mask()
        if self.mask is not None and mask is not None:
            np.copyto(self.mask, _array(mask))

    def _leave_rest_out(self, rollout: Rollout) -> None:
        """Ends a rollout in which every lane has played its one episode; clears leftovers of an earlier one."""
        last = rollout.num_steps
        after = {name: rollout.storage[name][self.cursor].clone() for name in rollout.obs_names}
        for name, field in rollout.storage.items():
            if name not in (f.NOISE, f.FINAL_INDEX, f.POLICY_VERSION):
                field[self.cursor :].zero_()
        for name, rows in after.items():
            rollout.storage[name][last].copy_(rows)
        self.cursor = last

    def _finish(self, rollout: Rollout) -> None:
        """Computes the bootstrap values of the last step and of ended episodes, and prepares the next block."""
        if self.policy.has_values:
            value_last(rollout, self.policy, self.policy_state)
            value_truncated(rollout, self.policy)
        refuse_nonfinite(rollout, self.env.first_lane)
        refuse_empty(rollout, self.gate)
        self.hand_over(rollout)

    def hand_over(self, rollout: Rollout) -> None:
        """Keeps the current observations, for the next block."""
        last = rollout.num_steps
        for name, rows in self.obs.items():
            np.copyto(rows, rollout.array(name)[last])
        if self.mask is not None:
            np.copyto(self.mask, rollout.array(f.ACTION_MASK)[last])
        np.copyto(self.first, rollout.array(f.FIRST)[last])
        self.lane_step += last
        self.cursor = 0

    def drain_seconds(self) -> dict[str, float]:
        """Returns the seconds spent acting and stepping since the last call."""
        seconds, self.seconds = self.seconds, {"act": 0.0, "env": 0.0}
        return seconds

    def drain_metrics(self) -> Metrics:
        """Returns the environment's step metrics since the last call."""
        return {**self.step_metrics.drain(), **self.gate.metrics()}


def _array(values: object) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()  # type: ignore[attr-defined]  # a tensor
