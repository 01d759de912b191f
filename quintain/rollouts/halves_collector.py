"""Fills a rollout by halves: while workers step one half of the lanes, the policy acts for the other.

Every lane has the same data as in lockstep, up to rounding: the policy acts for half as many rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from quintain.core.rng import Rng
from quintain.data.rollout import Rollout
from quintain.envs.hosts.grouped import GroupedEnv
from quintain.envs.hosts.workers import WorkerEnv
from quintain.policies.base import Policy
from quintain.rollouts.bootstrap import value_last, value_truncated
from quintain.rollouts.finite import refuse_empty, refuse_nonfinite
from quintain.rollouts.sync_collector import (
    EpisodeListener,
    StepListener,
    SyncCollector,
    never,
)

if TYPE_CHECKING:
    from quintain.typing import Metrics, State


class HalvesCollector:
    """Two collectors that alternate; between two calls both are at the same step."""

    def __init__(
        self, env: GroupedEnv, policy: Policy, rng: Rng, on_episodes: EpisodeListener, *, on_nonfinite: str
    ) -> None:
        self.env = env
        self.policy = policy
        self.halves = [_Half(each, policy, rng, on_episodes, on_nonfinite=on_nonfinite) for each in env.groups]
        self.on_step: StepListener | None = None
        self._parts: dict[int, tuple[Rollout, list[Rollout]]] = {}

    def collect(self, rollout: Rollout, version: int = 0, should_stop: Callable[[], bool] = never) -> bool:
        """Fills the rest of the rollout; returns False if it was asked to stop before the last step."""
        parts = self._parts_of(rollout)
        with torch.inference_mode():
            while self.cursor < rollout.num_steps:
                if should_stop():
                    return False
                if self.cursor == 0:
                    self._begin(rollout, parts, version)
                self._take_steps(rollout, parts, should_stop)
            if self.policy.has_values:
                for half, part in zip(self.halves, parts, strict=True):
                    value_last(part, self.policy, half.policy_state)
                value_truncated(rollout, self.policy)
            refuse_nonfinite(rollout, self.env.first_lane)
            refuse_empty(rollout, *(half.gate for half in self.halves))
            for half, part in zip(self.halves, parts, strict=True):
                half.hand_over(part)
        return True

    def _take_steps(self, rollout: Rollout, parts: Sequence[Rollout], should_stop: Callable[[], bool]) -> None:
        """Takes one step or more; at the end both halves have taken equally many."""
        (first, second), (mine, others) = self.halves, parts
        first.begin_step(mine)
        while True:
            second.begin_step(others)
            first.finish_step(mine)
            goes_on = first.cursor < rollout.num_steps and not should_stop()
            if goes_on:
                first.begin_step(mine)
            second.finish_step(others)
            if self.on_step is not None:
                self.on_step(rollout.td()[:, second.cursor - 1], {})
            if not goes_on:
                return

    def _begin(self, rollout: Rollout, parts: Sequence[Rollout], version: int) -> None:
        for half, part in zip(self.halves, parts, strict=True):
            part.sequence = rollout.sequence
            half.begin(part, version)
        rollout.sequence = parts[0].sequence

    def _parts_of(self, rollout: Rollout) -> list[Rollout]:
        """Returns each half's lanes of a block; made once, because a step has many views."""
        if id(rollout) not in self._parts:
            self._parts[id(rollout)] = (rollout, [rollout.part(lanes) for lanes in self.env.lanes])
        return self._parts[id(rollout)][1]

    @property
    def cursor(self) -> int:
        return self.halves[0].cursor

    @property
    def on_episodes(self) -> EpisodeListener:
        return self.halves[0].on_episodes

    @on_episodes.setter
    def on_episodes(self, listener: EpisodeListener) -> None:
        for half in self.halves:
            half.on_episodes = listener

    def start_episodes(self) -> None:
        """Starts a new episode in every lane; truncated episodes report no return."""
        for half in self.halves:
            half.start_episodes()

    def begin_anew(self, states: Sequence[State]) -> None:
        """Starts new episodes in all lanes, at a lane step that none of these collectors reached."""
        before = [state for whole in states for state in whole["halves"].values()]
        for half in self.halves:
            half.begin_anew(before)

    def drain_seconds(self) -> dict[str, float]:
        """Returns the seconds spent acting, and waiting for workers, since the last call."""
        drained = [half.drain_seconds() for half in self.halves]
        return {name: sum(seconds[name] for seconds in drained) for name in drained[0]}

    def drain_metrics(self) -> Metrics:
        """Returns the counts of values that were not finite, and the means of what ended episodes said."""
        counts: Metrics = {}
        windows: dict[str, list[float]] = {}
        for half in self.halves:
            for name, count in half.gate.metrics().items():
                counts[name] = counts.get(name, 0.0) + count
            for name, window in half.step_metrics.windows.items():
                windows.setdefault(name, []).extend(window)
        return counts | {name: sum(window) / len(window) for name, window in windows.items() if window}

    def state_dict(self) -> State:
        return {"halves": {str(place): half.state_dict() for place, half in enumerate(self.halves)}}

    def load_state_dict(self, state: State) -> None:
        if "halves" not in state:
            raise ValueError("it was made without env_workers.acts_in_halves")
        for place, half in enumerate(self.halves):
            half.load_state_dict(state["halves"][str(place)])


class _Half(SyncCollector):
    """A collector whose step is split into begin and finish."""

    env: WorkerEnv

    def begin(self, part: Rollout, version: int) -> None:
        self._begin(part, version)

    def begin_step(self, part: Rollout) -> None:
        self.env.begin_step(self._act(part, self.cursor))

    def finish_step(self, part: Rollout) -> None:
        self._take_in(part, self.cursor, self._admitted(part, self.env.finish_step))
        self.cursor += 1
