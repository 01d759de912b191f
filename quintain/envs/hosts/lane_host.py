"""The environments of some lanes, stepped one after another: the same code in the learner's process and in a worker.

Exceptions of environments are returned as faults; lanes without a fault continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from quintain.data.spec import BehaviorSpec, discrete_sizes
from quintain.envs.base import SUCCESS
from quintain.envs.gym.masks import MASK, MaskSource, declared_mask, mask_notes, masked
from quintain.envs.gym.protocols import GymEnv
from quintain.envs.gym.spaces import behavior_spec, text_notes
from quintain.envs.hosts.faults import LaneFault, last_frames, own_frames
from quintain.envs.hosts.lane_rows import CREATING, IDLE, RESETTING, STEPPING, LaneRows
from quintain.envs.hosts.lane_values import LaneValues, refuse_odd_result
from quintain.envs.parameters import LaneParameters, ParameterSetter
from quintain.errors import EnvError, QuintainError
from quintain.services.user_code import ANYTHING, in_one_line

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.typing import Array, Info, Observation

EnvFactory: TypeAlias = Callable[[], GymEnv]
"""Factory of one Gymnasium environment."""

_MAX_FIRST_RESETS = 5
_NEEDED = ("reset", "step", "observation_space", "action_space")
_CODES = {"step": "E0501", "reset": "E0502", "create": "E0505"}


@dataclass(frozen=True)
class HostOptions:
    """Options that all hosts of an environment share."""

    group_size: int = 1
    """Number of neighbouring lanes with equal initial states."""
    encode_text: bool = False
    first_lane: int = 0
    """Index of the environment's first lane among the lanes of all ranks."""
    use_masks: bool = True
    """Whether action masks are looked for."""
    info_metrics: Sequence[str] = ()
    """Entries of info at the ends of episodes that are reported, in addition to whether the goal was reached."""

    @property
    def metric_names(self) -> tuple[str, ...]:
        return (SUCCESS, *self.info_metrics)


class LaneHost:
    """Holds one environment per lane; reads actions from shared rows and writes results to them."""

    spec: BehaviorSpec
    rows: LaneRows

    def __init__(self, name: str, factories: Mapping[int, EnvFactory], rng: Rng, options: HostOptions) -> None:
        self.name = name
        self.factories = dict(factories)
        self.rng = rng
        self.options = options
        self.envs: dict[int, GymEnv] = {}
        self.parameters: dict[int, ParameterSetter] = {}
        self.mask_source: MaskSource = ""
        self.notes: tuple[str, ...] = ()
        self.first_reset: tuple[Observation, Info] | None = None
        self.is_watched = False
        self.is_drawn = False
        self.end_frame: tuple[Array | None, float] | None = None
        """What the first lane showed where the last step ended its episode, if it is drawn."""

    def create(self) -> None:
        """Makes every environment; raises if one cannot be made, because then none can be."""
        for lane in self.factories:
            self._remake(lane)

    def _remake(self, lane: int) -> None:
        self.envs[lane] = _create(self.name, self.factories[lane])
        self.parameters[lane] = ParameterSetter(self.name, self.envs[lane])

    def describe(self, mask_source: MaskSource | None = None) -> BehaviorSpec:
        """Returns the spec; unless it is given, looks for masks in lane 0's first reset."""
        first = next(iter(self.envs.values()))
        spaces = (self.name, first.observation_space, first.action_space)
        spec = behavior_spec(*spaces, encode_text=self.options.encode_text)
        if not self.options.use_masks:
            mask_source = ""
        found = declared_mask(first, first.observation_space, spec.action) if mask_source is None else mask_source
        if found == "obs":
            spec = behavior_spec(*spaces, encode_text=self.options.encode_text, leave_out=MASK)
        elif mask_source is None and not found and discrete_sizes(spec.action):
            # Only a reset shows what is in info. It is the lane's first one, and is not repeated when it is asked for.
            found = "info" if MASK in (self._first_info() or {}) else ""
        self.mask_source = found
        self.notes = (
            *text_notes(self.name, first.observation_space, encode_text=self.options.encode_text),
            *mask_notes(self.name, found),
        )
        return masked(spec, found)

    def attach(self, spec: BehaviorSpec, rows: LaneRows, mask_source: MaskSource) -> None:
        """Sets the memory in which steps are exchanged."""
        self.spec, self.rows, self.mask_source = spec, rows, mask_source
        # Single numbers are read and written five times as fast without numpy.
        self.marks: memoryview = rows.marks.data
        self.values = LaneValues(self.name, spec, rows, mask_source, self.options.metric_names)

    def set_parameters(self, values: LaneParameters) -> list[LaneFault]:
        """Sets parameters of environments; drops lane 0's first reset, which had other values."""
        self.forget_first_reset()
        for lane, mine in values.items():
            self.parameters[lane].set(mine)
        return []

    def require_parameters(self, names: Sequence[str]) -> list[LaneFault]:
        """Refuses names of parameters that environments do not have; all environments are alike."""
        for setter in list(self.parameters.values())[:1]:
            setter.require(names)
        return []

    def put_parameters_back(self, values: LaneParameters) -> list[LaneFault]:
        """Sets these parameters, and all others to their initial values."""
        for lane, mine in values.items():
            self.parameters[lane].put_back(mine)
        return []

    def forget_first_reset(self) -> None:
        """Makes the next first episode of lane 0 reset the environment again."""
        self.first_reset = None

    def reset(self, lanes: Sequence[int]) -> list[LaneFault]:
        """Starts each lane's episode according to the rows."""
        faults = []
        for lane in lanes:
            episode, attempt = int(self.rows.episode[lane]), int(self.rows.attempt[lane])
            if fault := self._reset(lane, episode, attempt):
                faults.append(fault)
        return faults

    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> list[LaneFault]:
        """Makes environments again, with these parameters, and starts the episodes of the rows."""
        faults = []
        for lane in lanes:
            self._mark(lane, CREATING)
            with suppress(*ANYTHING):  # it is broken already
                self.envs[lane].close()
            try:
                self._remake(lane)
                self.parameters[lane].put_back(parameters.get(lane, {}))
            except BaseException as error:
                faults.append(self._fault(lane, "create", error))
            else:
                faults += self.reset([lane])
            self._mark(lane, IDLE)
        return faults

    def step(self, lanes: Sequence[int], *, autoreset: bool = True) -> list[LaneFault]:
        """Steps lanes with the actions in the rows; a lane whose episode ended starts its next one."""
        store_step, envs, is_watched = self.values.store_step, self.envs, self.is_watched
        self.end_frame = None
        faults = []
        for lane, action in zip(lanes, self.values.actions(lanes), strict=True):
            if is_watched:
                self._mark(lane, STEPPING)
            try:
                env = envs[lane]
                is_over = store_step(lane, env, env.step(action), autoreset=autoreset)
            except BaseException as error:
                faults.append(self._fault(lane, "step", error, f", action {action}"))
            else:
                if is_over and self.is_drawn and env is next(iter(envs.values())):
                    self.end_frame = self._draw()
                if is_over and (fault := self._reset(lane, int(self.rows.episode[lane]) + 1, 0)):
                    faults.append(fault)
            if is_watched:
                self._mark(lane, IDLE)
        return faults

    def render(self) -> tuple[Array | None, float]:
        """Draws the first lane; returns the frame, if there is one, and frames per second.

        After a step that ended its episode it is the end; of an episode that was not drawn before, the next one.
        """
        self.is_drawn = True
        return self._draw() if self.end_frame is None else self.end_frame

    def _draw(self) -> tuple[Array | None, float]:
        env = next(iter(self.envs.values()))
        try:
            frame = env.render()
        except ANYTHING as error:
            raise EnvError(f"env {self.name!r} cannot draw itself: {in_one_line(error)}", code="E0522") from error
        pace = float((getattr(env, "metadata", None) or {}).get("render_fps", 30))
        # A copy: what an environment returned may be drawn over.
        return None if frame is None else np.array(frame), pace

    def close(self) -> None:
        for env in self.envs.values():
            with suppress(*ANYTHING):  # one that cannot be closed must not keep the others open
                env.close()

    def _reset(self, lane: int, episode: int, attempt: int) -> LaneFault | None:
        self._mark(lane, RESETTING)
        try:
            if lane == 0 and self.first_reset is not None:
                (obs, info), self.first_reset = self.first_reset, None
            else:
                obs, info = self._begun(lane, episode, attempt)
            self.values.store_obs(self.rows.obs, lane, obs, "reset")
            self.values.store_mask(lane, self.envs[lane], obs, info)
        except BaseException as error:
            return self._fault(lane, "reset", error)
        finally:
            self._mark(lane, IDLE)
        return None

    def _first_info(self) -> Info:
        """Returns the info of the first reset; an environment that fails is tried again."""
        lane = next(iter(self.envs))
        failures: list[BaseException] = []
        for attempt in range(_MAX_FIRST_RESETS):
            try:
                obs, info = self._begun(lane, 0, attempt)
            except ANYTHING as error:
                failures.append(error)
                self._remake(lane)
            else:
                # After a failure the lane's first episode must fail in its turn, to be counted and told.
                self.first_reset = None if failures else (obs, info)
                return info
        raise self._fault(lane, "reset", failures[0], episode=0).as_error() from failures[0]

    def _begun(self, lane: int, episode: int, attempt: int) -> tuple[Observation, Info]:
        result = self.envs[lane].reset(seed=self._seed(lane, episode, attempt))
        refuse_odd_result(self.name, "reset", result)
        obs, info = result
        return obs, info

    def _seed(self, lane: int, episode: int, attempt: int) -> int:
        # Among the lanes of all ranks, so that the same lane has the same episodes on whichever rank it is.
        group = self._number(lane) // self.options.group_size
        return self.rng.seed_for("reset", group, episode, attempt)

    def _number(self, lane: int) -> int:
        return self.options.first_lane + lane

    def _mark(self, lane: int, call: int) -> None:
        """Marks the current call of a lane in shared memory, so that a watcher can name a lane that hangs."""
        if self.is_watched:
            marks = self.marks
            marks[lane] = (marks[lane] | 3) + 1 + call

    def _fault(
        self, lane: int, call: str, error: BaseException, action: str = "", episode: int | None = None
    ) -> LaneFault:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, EnvError):
            what, code = f"{error.message} (lane {self._number(lane)})", error.code
            return LaneFault((lane,), call, what, "", own_frames(error), code, cause=error)
        number, attempt = episode or 0, 0
        if episode is None:
            number, attempt = int(self.rows.episode[lane]), int(self.rows.attempt[lane])
        when = f", episode {number}{action[:200]}" if call == "step" else ""
        what = f"env {self.name!r} failed in {call}() on lane {self._number(lane)}{when}"
        seed = self._seed(lane, number, attempt)
        trace = f"{own_frames(error)}\nepisode {number} of lane {self._number(lane)} began with reset(seed={seed})"
        return LaneFault((lane,), call, what, in_one_line(error), trace, _CODES[call], cause=error)


def _create(name: str, factory: EnvFactory) -> GymEnv:
    try:
        env = factory()
        missing = [needed for needed in _NEEDED if not hasattr(env, needed)]
    except QuintainError:
        raise
    except ANYTHING as error:
        what = f"env {name!r} cannot be created: {in_one_line(error)}"
        raise EnvError(what, code="E0505", notes=last_frames(own_frames(error))) from error
    if missing:
        raise EnvError(
            f"env {name!r} made a {type(env).__name__} without {missing[0]}; it must be a Gymnasium environment",
            code="E0506",
        )
    return env
