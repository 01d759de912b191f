"""Acts for whichever lanes are ready, and collects fixed-length fragments of each lane.

No lane waits for another. When lanes have arrived, the collector waits for more until a deadline, then acts for all
that are there in one forward pass. A fragment is complete after T steps of its lane; its last bootstrap value is the
value that the lane's next action is sampled with. Several collectors fill one block with what each of them has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.core.state import require_count, require_shapes
from quintain.data import fields as f
from quintain.data.fields import Declared, resolve_fields
from quintain.data.fragments import FRAGMENT_FIELDS, Ending, FragmentBlock
from quintain.data.rollout import Rollout
from quintain.data.spec import flatten, leaves
from quintain.envs.hosts.ready_lanes import Arrived, ReadyLanes
from quintain.errors import EnvError, SettingsError
from quintain.policies.base import Policy, fill_noise
from quintain.rollouts.bootstrap import value_truncated
from quintain.rollouts.finite import FiniteGate, refuse_nonfinite
from quintain.rollouts.row_slots import RowSlots
from quintain.rollouts.step_metrics import StepMetrics
from quintain.rollouts.sync_collector import EpisodeListener, StepListener

if TYPE_CHECKING:
    from quintain.typing import Array, Metrics, State

LOOK_SECONDS = 0.01
"""Interval at which a collector whose lanes are all under way looks whether to stop, and whether the block is full."""
TURN_SECONDS = 0.0005
"""How long a collector that takes turns with others waits for its lanes."""


def _require_support(policy: Policy, on_nonfinite: str) -> None:
    if policy.device.type != "cpu":
        raise SettingsError("rollout.type fragments acts on the CPU; set run.device to cpu", code="E0254")
    if on_nonfinite == "drop_episode":
        raise SettingsError(
            "env.on_nonfinite: drop_episode resets lanes between steps, and with rollout.type fragments lanes do "
            "not step together; use clamp or error, or let the environment raise",
            code="E0254",
        )


class TakesWeights(Protocol):
    """Gives the policy the newest weights."""

    def take(self) -> tuple[int, int]:
        """Returns version and session of the newest weights, which the policy then has."""


class FragmentCollector:
    """Steps lanes at their own pace with one policy, and appends their fragments to a block."""

    def __init__(
        self,
        env: ReadyLanes,
        policy: Policy,
        rng: Rng,
        fields: Declared,
        *,
        num_steps: int,
        deadline_seconds: float,
        timeout_seconds: float = math.inf,
        weights: TakesWeights | None = None,
        takes_turns: bool = False,
        on_nonfinite: str = "error",
    ) -> None:
        """Takes the fields of the block, the length of fragments, and how long lanes that are ready wait for more.

        A block that gets no fragment for `timeout_seconds` is given up. Newest weights are taken before each act;
        without `weights` the policy acts as it is. A collector that takes turns returns after each act.
        """
        _require_support(policy, on_nonfinite)
        self.env, self.policy, self.rng = env, policy, rng
        self.deadline_seconds, self.timeout_seconds = deadline_seconds, timeout_seconds
        self.weights, self.takes_turns = weights, takes_turns
        # The current block, and the times of its last fragment and of the last look at it.
        self.block_number, self.progressed, self.looked = 0, 0.0, 0.0
        self.on_episodes: EpisodeListener = lambda returns, lengths: None
        num_lanes = env.num_lanes
        self.open: Rollout = FragmentBlock(env.spec, fields, num_lanes=num_lanes, num_steps=num_steps)
        """The unfinished fragment of each lane."""
        self.open.arrays[f.LANE][...] = env.first_lane + np.arange(num_lanes)
        self.endings: list[list[Ending]] = [[] for _ in range(num_lanes)]
        self.cursor: Array = np.zeros(num_lanes, np.int64)
        """The number of steps in each unfinished fragment."""
        self.policy_state = policy.initial_state(num_lanes)
        self.state_before = policy.initial_state(num_lanes)
        """The hidden state before the last action of each lane."""
        self.episode_return: Array = np.zeros(num_lanes, np.float64)
        self.episode_length: Array = np.zeros(num_lanes, np.int64)
        self.is_ready: Array = np.zeros(num_lanes, np.bool_)
        self.ready_since: Array = np.zeros(num_lanes)
        """The time at which each lane that is ready arrived."""
        self.left_at: float | None = None
        """The time at which the last block was full; lanes may have arrived since."""
        self.idle_seconds, self.counted_from = 0.0, perf_counter()
        """Seconds in which lanes waited for an action, of all lanes, and since when."""
        self.gate, self.step_metrics = FiniteGate(env, on_nonfinite), StepMetrics()
        self.is_gone: Array = np.zeros(num_lanes, np.bool_)
        """Lanes that went down while they waited for an action: no step of theirs broke."""
        self.row_slots = RowSlots(env.spec, policy.declare_fields())
        standard, declared = (resolve_fields(env.spec, each) for each in ({}, policy.declare_fields()))
        more = (name for name in declared if name not in standard)
        self.action_names = tuple(leaves(env.spec.action, f.ACTION))
        self.written_names = (*self.action_names, f.LOG_PROB, f.VALUE, *more)
        self.seen_names = (*leaves(env.spec.obs, f.OBS), f.FIRST, f.NOISE)
        self.seen_names += (f.ACTION_MASK,) if env.spec.mask_size else ()
        self.seconds = {"act": 0.0, "env": 0.0}
        self.num_collected = self.num_broken = self.num_discarded = 0
        """Steps since the beginning: complete ones, broken ones, and complete ones of fragments that a stop cut off."""
        env.reset()
        self._stand_at_first(np.arange(num_lanes))

    def collect(self, rollout: Rollout, version: int, should_stop: Callable[[], bool]) -> bool:
        """Puts its fragments in free columns of the block until this and other collectors have filled it.

        Returns False if it was asked to stop before, or its turn is over.
        """
        assert isinstance(rollout, FragmentBlock)
        if self.block_number != rollout.sequence or perf_counter() - self.looked > 1.0:
            # Also after an interruption, for which no lane is to blame.
            self.block_number, self.progressed = rollout.sequence, perf_counter()
        with torch.inference_mode():
            while (room := rollout.room) > 0:
                if should_stop():
                    return False
                started = perf_counter()
                if started - self.progressed > self.timeout_seconds:
                    raise self._too_slow(room)
                is_due, received = self._receive(), perf_counter()
                if is_due:
                    self._act(rollout, (version, 0) if self.weights is None else self.weights.take())
                self.looked = perf_counter()
                self.seconds["env"] += received - started
                self.seconds["act"] += self.looked - received
                if rollout.room < room:
                    self.progressed = received
                if self.takes_turns and rollout.room > 0:
                    return False
            self.left_at = perf_counter()
            refuse_nonfinite(rollout, self.env.first_lane)
        return True

    def _receive(self) -> bool:
        """Takes in lanes that arrive; returns whether all are here, or the first one has waited long enough."""
        while self.env.num_under_way:
            left = LOOK_SECONDS
            if self.is_ready.any():
                left = float(self.ready_since[self.is_ready].min()) + self.deadline_seconds - perf_counter()
            arrived = self.env.receive(max(0.0, min(left, TURN_SECONDS) if self.takes_turns else left))
            self._take_in(arrived)
            if left <= 0.0:
                return True
            if self.takes_turns or not self.is_ready.any():
                return False
        return True

    def _too_slow(self, room: int) -> EnvError:
        env, lanes = self.env, np.arange(self.env.num_lanes)
        states = {
            "are stepping": env.is_stepping,
            "are made again": env.is_restarting,
            "are broken": env.is_down,
            "wait for an action": self.is_ready,
        }
        said = [
            f"{', '.join(map(str, env.first_lane + lanes[which]))} {state}"
            for state, which in states.items()
            if which.any()
        ]
        return EnvError(
            f"no fragment of {self.open.num_steps} steps was completed for {self.timeout_seconds:g} s, and {room} of "
            f"the block are missing. Of the lanes {'; '.join(said)}. Raise rollout.timeout_seconds if they are only "
            f"slow, or lower rollout.num_steps",
            code="E0518",
        )

    def _act(self, rollout: FragmentBlock, weights: tuple[int, int]) -> None:
        """Acts for the lanes that are ready; a lane with a complete fragment acts if the block has room for it."""
        lanes = np.flatnonzero(self.is_ready)
        is_complete = self.cursor[lanes] == self.open.num_steps
        columns = rollout.claim(int(np.count_nonzero(is_complete))) if is_complete.any() else slice(0, 0)
        lanes = lanes[~is_complete | (np.cumsum(is_complete) <= columns.stop - columns.start)]
        if not len(lanes):
            return
        num_rows, step = len(lanes), self.cursor[lanes]
        slot = self.row_slots.slot(num_rows)
        fields = self.open.arrays
        for name in self.seen_names:
            # Noise of a complete fragment's last slot is that of the first step of the next one.
            slot.arrays[name][:num_rows] = fields[name][step, lanes]
        state = torch.zeros((len(slot.log_prob), self.policy.state_size))
        state[:num_rows] = before = self.policy_state[lanes]
        self.policy.act(slot, state)
        complete = step == self.open.num_steps
        if complete.any():
            fields[f.VALUE][step[complete], lanes[complete]] = slot.arrays[f.VALUE][:num_rows][complete]
            self._hand_over(rollout, columns, lanes[complete])
            step = self.cursor[lanes]
        for name in self.written_names:
            fields[name][step, lanes] = slot.arrays[name][:num_rows]
        fields[f.POLICY_VERSION][step, lanes], fields[f.SESSION][step, lanes] = weights
        self.idle_seconds += float(np.sum(perf_counter() - self.ready_since[lanes]))
        self.state_before[lanes] = before
        self.policy_state[lanes] = state[:num_rows]
        chosen = flatten(self.env.spec.action, self.policy.env_action(slot), f.ACTION)
        self.is_ready[lanes] = False
        self.env.send(lanes, {name: chosen[name].numpy()[:num_rows] for name in self.action_names})

    def _hand_over(self, rollout: FragmentBlock, columns: slice, lanes: Array) -> None:
        """Copies the fragments of these lanes to columns of the block, and begins their next ones where they stand."""
        endings = [self.endings[lane] for lane in lanes]
        rollout.append(columns, self.open, lanes, endings)
        if self.policy.has_values and any(endings):
            value_truncated(rollout.part(columns), self.policy)
        fields, last = self.open.arrays, self.open.num_steps
        for name in (*self.seen_names, f.VALUE):
            fields[name][0, lanes] = fields[name][last, lanes]
        self._begin(lanes, follows=True)

    def _begin(self, lanes: Array, *, follows: bool) -> None:
        """Begins fragments; their observation is at time step 0."""
        fields = self.open.arrays
        fields[f.FRAGMENT][:, lanes] += 1
        fields[f.FOLLOWS][:, lanes] = follows
        fields[f.VALID][:, lanes] = True
        for name in (f.DONE, f.TERMINATED, f.TRUNCATED, f.REWARD, f.FINAL_VALUE, *self.open.declared_names):
            if name not in FRAGMENT_FIELDS:
                fields[name][:, lanes] = 0
        self.open.policy_state[lanes] = self.policy_state[lanes]
        self.cursor[lanes] = 0
        num_steps, noise = self.open.num_steps, self.policy.noise
        for lane in map(int, lanes):
            self.endings[lane] = []
            # A function of the lane and its steps; the last slot is the first step of the next fragment.
            first_step = int(fields[f.FRAGMENT][0, lane] - 1) * num_steps
            drawn = np.zeros((num_steps + 1, 1, noise.size), np.float32)
            fill_noise(drawn, noise, self.rng, first_step, self.env.first_lane + lane)
            fields[f.NOISE][:, lane] = drawn[:, 0]

    def _stand_at_first(self, lanes: Array) -> None:
        """Begins fragments at the first observations of new episodes."""
        self._see(lanes, np.zeros(len(lanes), np.int64))
        self.open.arrays[f.FIRST][0, lanes] = True
        self._begin(lanes, follows=False)
        self.episode_return[lanes] = 0.0
        self.episode_length[lanes] = 0
        self.is_ready[lanes] = True
        self.ready_since[lanes] = perf_counter()

    def _take_in(self, arrived: Arrived) -> None:
        if len(gone := arrived.gone):
            self.is_ready[gone], self.is_gone[gone] = False, True
            # No action was chosen by their last observation: the memory there is the present one.
            self.state_before[gone] = self.policy_state[gone]
        self.gate.clamp_rows(self.env.rows, arrived.lanes)
        if len(anew := arrived.lanes[arrived.is_anew]):
            self._cut(anew)
        if len(lanes := arrived.lanes[~arrived.is_anew]):
            self._write(lanes)
        self.is_ready[arrived.lanes] = True
        # Lanes that arrived while there was no block are found by the first look.
        self.ready_since[arrived.lanes] = self.left_at or perf_counter()
        self.left_at = None

    def _write(self, lanes: Array) -> None:
        """Writes the results of complete steps."""
        rows, fields, step = self.env.rows, self.open.arrays, self.cursor[lanes]
        reward, terminated, truncated = rows.reward[lanes], rows.terminated[lanes], rows.truncated[lanes]
        done = terminated | truncated
        for name, values in ((f.REWARD, reward), (f.TERMINATED, terminated), (f.TRUNCATED, truncated), (f.DONE, done)):
            fields[name][step, lanes] = values
        fields[f.FIRST][step + 1, lanes] = done
        self._see(lanes, step + 1)
        self.cursor[lanes] += 1
        self.num_collected += len(lanes)
        self.episode_return[lanes] += reward
        self.episode_length[lanes] += 1
        if done.any():
            ended = lanes[done]
            for lane in map(int, ended):
                last = {name: obs[lane].copy() for name, obs in rows.final_obs.items()}
                self.endings[lane].append(Ending(int(self.cursor[lane]) - 1, last, self.policy_state[lane].clone()))
            self.on_episodes(self.episode_return[ended], self.episode_length[ended])
            if said := self.env.metrics_of(ended):
                self.step_metrics.add(said)
            self.episode_return[ended] = 0.0
            self.episode_length[ended] = 0

    def _cut(self, lanes: Array) -> None:
        """Discards the steps of environments that broke: their episodes are truncated at the last good observation."""
        fields = self.open.arrays
        for lane in map(int, lanes):
            step = int(self.cursor[lane])
            if step == 0:
                fields[f.FOLLOWS][:, lane] = False
            elif not fields[f.DONE][step - 1, lane]:
                fields[f.DONE][step - 1, lane] = fields[f.TRUNCATED][step - 1, lane] = True
                last = {name: fields[name][step, lane].copy() for name in self.env.rows.obs}
                self.endings[lane].append(Ending(step - 1, last, self.state_before[lane].clone()))
        self._see(lanes, self.cursor[lanes])
        fields[f.FIRST][self.cursor[lanes], lanes] = True
        self.episode_return[lanes] = 0.0
        self.episode_length[lanes] = 0
        self.num_broken += int(np.count_nonzero(~self.is_gone[lanes]))
        self.is_gone[lanes] = False

    def _see(self, lanes: Array, step: Array) -> None:
        """Copies observations and masks of these lanes to time steps of their fragments."""
        fields, rows = self.open.arrays, self.env.rows
        for name, obs in rows.obs.items():
            fields[name][step, lanes] = obs[lanes]
        if rows.mask is not None:
            fields[f.ACTION_MASK][step, lanes] = rows.mask[lanes]

    def start_episodes(self) -> None:
        """Starts new episodes in all lanes; what their unfinished fragments hold is discarded."""
        self.env.reset()
        self._leave_open()

    def begin_anew(self, states: Sequence[State]) -> None:
        self.env.begin_anew([state["env"] for state in states])
        self.open.arrays[f.FRAGMENT][...] = max(int(np.max(state["fragment"])) for state in states)
        if self.env.first_lane == 0:
            # Of the collectors of all ranks one goes on counting for those that were.
            counts = [[require_count("counts", each) for each in state["counts"]] for state in states]
            self.num_collected, self.num_broken, self.num_discarded = map(sum, zip(*counts, strict=True))
            self.num_discarded += sum(require_count("num_open", state["num_open"]) for state in states)
        self._leave_open()

    def _leave_open(self) -> None:
        self.num_discarded += int(self.cursor.sum())
        self._stand_at_first(np.arange(self.env.num_lanes))

    def drain_seconds(self) -> dict[str, float]:
        """Returns the seconds spent acting and stepping since the last call."""
        seconds, self.seconds = self.seconds, {"act": 0.0, "env": 0.0}
        return seconds

    def drain_metrics(self) -> Metrics:
        """Returns the number of steps in all lanes by what became of them, since the beginning, and environments' own.

        `rollout/idle` is the share of the lanes' time, since the last call, in which they waited for an action: for
        the policy, for other lanes, or for a block.
        """
        now = perf_counter()
        waiting = float(np.sum(now - self.ready_since[self.is_ready]))
        idle = (self.idle_seconds + waiting) / max(1e-9, (now - self.counted_from) * len(self.cursor))
        # What is under way is counted here and not again.
        self.idle_seconds, self.counted_from = -waiting, now
        counts = {"collected": self.num_collected, "discarded": self.num_discarded, "broken": self.num_broken}
        known = {f"fragments/{name}": float(count) for name, count in {**counts, "open": self.cursor.sum()}.items()}
        own = {**self.step_metrics.drain(), **self.gate.metrics()}
        return {**own, **known, "rollout/idle": min(1.0, max(0.0, idle))}

    @property
    def on_step(self) -> StepListener | None:
        return None

    @on_step.setter
    def on_step(self, listener: StepListener | None) -> None:
        if listener is not None:
            raise SettingsError("lanes that do not wait for each other have no common step to listen to")

    def state_dict(self) -> State:
        return {
            "env": self.env.state_dict(),
            "fragment": self.open.arrays[f.FRAGMENT][0].copy(),
            "num_open": int(self.cursor.sum()),
            "counts": [self.num_collected, self.num_broken, self.num_discarded],
            "metrics": self.step_metrics.state_dict(),
            "gate": self.gate.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Starts new episodes and fragments; complete fragments are in the store, and unfinished ones are discarded."""
        require_shapes("fragment", state["fragment"], self.cursor)
        counts = [require_count("counts", each) for each in state["counts"]]
        self.step_metrics.load_state_dict(state["metrics"])
        self.gate.load_state_dict(state["gate"])
        self.env.load_state_dict(state["env"])
        self.open.arrays[f.FRAGMENT][...] = np.asarray(state["fragment"])
        self.cursor[...] = 0
        self._leave_open()
        self.num_collected, self.num_broken, self.num_discarded = counts
        self.num_discarded += require_count("num_open", state["num_open"])
