"""Lanes that do not wait for each other: each is sent its action when it is ready, and returns when it is done.

A lane that is slow, hangs, resets or is made again keeps no other lane from stepping. With worker processes the unit
is a worker: lanes of one worker return together. In this process lanes are stepped at once, one after another.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from quintain.envs.base import Env, StepResult
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.hosts.faults import CONTRACT_BREACHES, RAISED, LaneFault
from quintain.envs.hosts.lane_host import LaneHost
from quintain.envs.hosts.worker_handle import WorkerHandle
from quintain.envs.hosts.worker_watch import Waiting
from quintain.envs.hosts.workers import WorkerCrew
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.envs.parameters import LaneParameters, Parameters
    from quintain.typing import Action, Array, Info, LaneIds, LaneMask, Mirror, Observation, State

NOT_EXACT = "statistical: lanes do not wait for each other"
_SETTLE_SECONDS, _PAUSE_SECONDS = 1.0, 0.01


class Arrived(NamedTuple):
    """Lanes that can act again; their rows hold the results."""

    lanes: Array
    """[k] int64, in increasing order"""
    is_anew: Array
    """[k] bool, where the environment broke and was made again: its step is discarded, and the observation is the
    first of another episode"""
    gone: Array
    """[m] int64, lanes that waited for an action and went down with their worker; they arrive anew"""


class _Steps(Protocol):
    """Steps lanes without waiting for them."""

    def step(self, lanes: Sequence[int]) -> None: ...
    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> None: ...
    def finished(self, seconds: float) -> tuple[list[int], list[LaneFault]]:
        """Waits at most so long for lanes that finished, or broke, since the last call."""


class ReadyLanes(Env):
    """Lets every lane step at its own pace."""

    def __init__(self, env: Env) -> None:
        if not isinstance(env, LaneEnv):
            raise SettingsError(
                f"rollout.type fragments lets each lane step by itself, and {type(env).__name__} steps all its lanes "
                f"together; use rollout.type block, or a Gymnasium environment with vectorization: lanes",
                code="E0254",
            )
        self.lane_env = env
        self.spec, self.num_lanes, self.rows = env.spec, env.num_lanes, env.rows
        self.group_size, self.first_lane, self.notes = env.group_size, env.first_lane, env.notes
        crew = env.crew
        self.steps: _Steps = _InWorkers(crew) if isinstance(crew, WorkerCrew) else _InProcess(env.host)
        num_lanes = env.num_lanes
        self.is_stepping: Array = np.zeros(num_lanes, np.bool_)
        self.is_restarting: Array = np.zeros(num_lanes, np.bool_)
        self.is_down: Array = np.zeros(num_lanes, np.bool_)
        """Broken, and not yet being made again."""
        self.has_step: Array = np.zeros(num_lanes, np.bool_)
        """Made again after a step that counts: the episode had ended before its environment broke."""
        self.not_before: Array = np.zeros(num_lanes)
        """The time until which a lane that failed several times waits before it is made again."""
        self.early: list[Arrived] = []
        """Lanes that arrived while something else was waited for."""

    def send(self, lanes: Array, action: Mapping[str, Array]) -> None:
        """Starts a step of these lanes with their actions, by field name, [k, ...]."""
        mask = None if self.rows.mask is None else self.rows.mask[lanes]
        for name, values in action.items():
            self.lane_env.action_checks.refuse_impossible(name, values, mask, lanes)
            self.rows.action[name][lanes] = values
        self.is_stepping[lanes] = True
        self.steps.step(lanes.tolist())

    def receive(self, seconds: float) -> Arrived:
        """Waits until a lane arrives, at most so long; then returns all that have arrived."""
        if self.early:
            return self.early.pop(0)
        self._restart_due()
        found, faults = self.steps.finished(seconds)
        return self._conclude(np.array(sorted(found), np.int64), faults)

    def metrics_of(self, ended: Array) -> Info | None:
        """Returns what environments said at the ends of these lanes' episodes."""
        return self.lane_env.metrics_of(ended)

    @property
    def num_under_way(self) -> int:
        """Number of lanes that are stepping, being made again, or have arrived and were not received."""
        num_early = sum(len(each.lanes) for each in self.early)
        return int(np.count_nonzero(self.is_stepping | self.is_restarting | self.is_down)) + num_early

    def _conclude(self, lanes: Array, faults: Sequence[LaneFault]) -> Arrived:
        """Counts ends of episodes and faults; broken lanes arrive later, when they were made again."""
        env, rows = self.lane_env, self.rows
        was_restarting = self.is_restarting[lanes]
        broken = {lane: fault for fault in faults for lane in fault.lanes}
        is_whole = np.array([lane not in broken for lane in lanes.tolist()], np.bool_)
        # A lane that broke in the reset after an end has truly ended its episode, unless its whole worker is gone.
        loses_step = {lane: fault.call == "step" or fault.warning != RAISED for lane, fault in broken.items()}
        lost = [lane for lane in broken if self.is_stepping[lane] and loses_step[lane]]
        stepped = lanes[self.is_stepping[lanes] & ~np.isin(lanes, lost)]
        gone = lanes[~self.is_stepping[lanes] & ~was_restarting]
        env.num_steps += bool(len(stepped))
        ended = stepped[rows.terminated[stepped] | rows.truncated[stepped]]
        env.episode[ended] += 1
        env.attempt[ended] = 0
        for values in (rows.reward, rows.terminated, rows.truncated):
            values[lost] = 0
        env.start_episodes([*ended.tolist(), *lost])
        for fault in faults:
            self._count(fault, [lane for lane in fault.lanes if lane in lost])
        is_anew = was_restarting & ~self.has_step[lanes]
        self.has_step[[lane for lane in broken if lane in stepped]] = True
        self.is_stepping[lanes] = self.is_restarting[lanes] = False
        self.is_down[list(broken)] = True
        whole = lanes[is_whole]
        self.has_step[whole] = False
        if len(whole):
            env.faults.succeeded((self.first_lane + whole).tolist(), env.team)
            env.faults.whole_team_is_down(None, env.team)
        elif self.is_down.all() and faults:
            env.faults.whole_team_is_down(faults[0], env.team)
        return Arrived(whole, is_anew[is_whole], gone)

    def _count(self, fault: LaneFault, lost: Sequence[int]) -> None:
        env = self.lane_env
        if fault.code in CONTRACT_BREACHES and env.num_steps <= 1:
            # Broken from the start: making it anew would only say the same again.
            raise fault.as_error() from fault.cause
        env.faults.take(fault, env.team, step=env.num_steps, first_lane=self.first_lane, num_aborted=len(lost))
        back_off = env.faults.back_off_seconds([self.first_lane + lane for lane in fault.lanes], env.team)
        self.not_before[list(fault.lanes)] = time.monotonic() + back_off

    def _restart_due(self) -> None:
        env = self.lane_env
        if not self.is_down.any() or env.faults.spent is not None:
            return
        if lanes := np.flatnonzero(self.is_down & (self.not_before <= time.monotonic())).tolist():
            env.attempt[lanes] += 1
            self.is_down[lanes], self.is_restarting[lanes] = False, True
            self.steps.restart(lanes, {lane: env.parameter_log.before[lane] for lane in lanes})

    def _settle(self) -> None:
        """Waits for all lanes that are under way, before something is done to all of them."""
        while (self.is_stepping | self.is_restarting).any():
            found, faults = self.steps.finished(_SETTLE_SECONDS)
            self.early.append(self._conclude(np.array(sorted(found), np.int64), faults))

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        self._settle()
        self.early.clear()
        self.lane_env.down |= self.is_down
        self.is_down[:] = self.has_step[:] = False
        return self.lane_env.reset(lanes)

    def step(self, action: Action) -> StepResult:
        return self.lane_env.step(action)

    def begin_anew(self, played: Sequence[State]) -> Observation:
        self.lane_env.episode.fill(max(int(np.max(state["episode"])) for state in played))
        return self.reset()

    def action_mask(self) -> Array | None:
        return self.lane_env.action_mask()

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        self._settle()
        self.lane_env.set_parameters(values, lanes)

    def require_parameters(self, names: Sequence[str]) -> None:
        self._settle()
        self.lane_env.require_parameters(names)

    def be_watched(self) -> None:
        self.lane_env.be_watched()

    @property
    def pulse(self) -> int:
        return self.lane_env.pulse

    @property
    def mirror(self) -> Mirror | None:
        return self.lane_env.mirror

    def render(self) -> Array | None:
        return self.lane_env.render()

    def close(self) -> None:
        self.lane_env.close()

    @property
    def exactness(self) -> str:
        return NOT_EXACT

    def state_dict(self) -> State:
        return {"episode": self.lane_env.episode.copy()}

    def load_state_dict(self, state: State) -> None:
        """Starts new episodes: where each lane stood when the state was saved is not known."""
        self.begin_anew([state])


class _InProcess:
    """Steps lanes of this process at once; they are finished when they are asked for."""

    def __init__(self, host: LaneHost) -> None:
        self.host = host
        self.done: list[int] = []
        self.faults: list[LaneFault] = []

    def step(self, lanes: Sequence[int]) -> None:
        self.done += lanes
        self.faults += self.host.step(lanes)

    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> None:
        self.done += lanes
        self.faults += self.host.restart(lanes, parameters)

    def finished(self, seconds: float) -> tuple[list[int], list[LaneFault]]:
        found, faults = self.done, self.faults
        self.done, self.faults = [], []
        if not found:
            # All are down, and wait before they are made again.
            time.sleep(min(seconds, _PAUSE_SECONDS))
        return found, faults


class _InWorkers:
    """Steps lanes of workers; a worker is busy until all lanes that it was asked for are done."""

    def __init__(self, crew: WorkerCrew) -> None:
        self.crew = crew
        self.waiting = Waiting(crew.watch)
        self.asked: dict[WorkerHandle, list[int]] = {}

    def step(self, lanes: Sequence[int]) -> None:
        for worker in self.crew.ask("step", lanes, autoreset=True):
            self._expect(worker, [lane for lane in lanes if self.crew.home[lane] is worker])

    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> None:
        for worker in self.crew.ask_restart(lanes, parameters):
            self._expect(worker, [lane for lane in lanes if self.crew.home[lane] is worker])

    def _expect(self, worker: WorkerHandle, lanes: list[int]) -> None:
        self.asked.setdefault(worker, []).extend(lanes)
        self.waiting.add(worker)

    def finished(self, seconds: float) -> tuple[list[int], list[LaneFault]]:
        faults: list[LaneFault] = []
        workers = self.waiting.poll(seconds, faults)
        # One that died takes lanes with it that had not been asked for anything.
        lost = [lane for fault in faults for lane in fault.lanes]
        return sorted({*lost, *(lane for worker in workers for lane in self.asked.pop(worker))}), faults
