"""The environment of all native tasks: rows of memory, episode seeds, and one compiled call per step.

Lanes, groups and seeds are those of Gymnasium environments as lanes, so a run has the same episodes either way. The
state is the simulator's own; a resumed run replays nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from quintain.compiled.runtime.cache import cache_note
from quintain.compiled.runtime.kernel import why_unavailable
from quintain.core.state import MOST_COUNTED, require_within
from quintain.data.spec import DiscreteSpec
from quintain.envs.base import Env, StepResult
from quintain.envs.native.canvas import Canvas
from quintain.envs.native.task import Task
from quintain.envs.parameters import Parameters
from quintain.envs.settings import NativeSettings
from quintain.errors import EnvError, QuintainError, SettingsError

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.typing import Action, Array, LaneIds, LaneMask, Observation, State

_TASKS = {
    "Acrobot-v1": ("acrobot", 500),
    "CartPole-v0": ("cartpole", 200),
    "CartPole-v1": ("cartpole", 500),
    "MountainCar-v0": ("mountain_car", 200),
    "MountainCarContinuous-v0": ("mountain_car_continuous", 999),
    "Pendulum-v1": ("pendulum", 200),
}
"""The module of each task, and Gymnasium's time limit."""


class NativeEnv(Env):
    """Steps every lane of a classic-control task in one compiled call; each result equals Gymnasium's."""

    # A step overwrites what the one before it left in its result; seeds follow from the episodes' numbers.
    not_state: ClassVar[frozenset[str]] = frozenset(
        {
            "task",
            "canvas",
            "num_lanes",
            "group_size",
            "first_lane",
            "notes",
            "action",
            "result",
            "seeds",
            "lanes",
            "outcome",
            "move",
        }
    )

    saved_shapes: ClassVar[frozenset[str]] = frozenset({"state", "age", "episode", "parameters", "obs"})

    def __init__(self, settings: NativeSettings, num_lanes: int, rng: Rng, first_lane: int = 0) -> None:
        if reason := why_unavailable():
            raise SettingsError(
                f"env native/{settings.id} is compiled, and {reason}. Gymnasium's own gives the same results: "
                f"{settings.id}",
                code="E0242",
            )
        module, limit = _TASKS[settings.id]
        self.settings = settings
        self.task: Task = import_module(f"quintain.envs.native.{module}").TASK
        self.canvas = Canvas(settings.id)
        self.spec = self.task.spec
        self.num_lanes = num_lanes
        self.group_size = settings.group_size
        self.first_lane = first_lane
        self.rng = rng
        self.notes = (note,) if (note := cache_note()) else ()
        self.state: Array = np.zeros((num_lanes, self.task.state_size))
        self.age: Array = np.zeros(num_lanes, np.int64)
        self.episode: Array = np.full(num_lanes, -1, np.int64)
        self.parameters: Array = np.tile(self.task.defaults(), (num_lanes, 1))
        self._assign(settings.kwargs)
        self.obs: Array = np.zeros((num_lanes, *self.task.obs.shape), np.float32)
        self.action: Array = np.zeros((num_lanes, *self.task.action.shape), self.task.action.dtype)
        self.seeds: Array = np.zeros(num_lanes, np.int64)
        """Seeds of each lane's next episode."""
        reward, ends = np.zeros(num_lanes, np.float32), np.zeros((2, num_lanes), np.bool_)
        # One for all steps: its arrays are written anew at each.
        self.result = StepResult(self.obs, reward, ends[0], ends[1], np.zeros_like(self.obs))
        records = self.parameters.view(self.task.record)[:, 0]
        self.lanes = (self.state, self.age, self.seeds, records, settings.max_episode_steps or limit)
        self.outcome = (self.obs, self.result.final_obs, reward, ends[0], ends[1])
        self.move = self.task.kernels.step.bind(self.lanes, self.action, self.outcome)

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        if lanes is None:
            # Lanes of a group may have played different numbers of episodes; from here on they begin alike.
            latest = self.episode.reshape(-1, self.group_size).max(axis=1)
            self.episode[:] = np.repeat(latest, self.group_size)
        chosen = np.ones(self.num_lanes, np.bool_) if lanes is None else np.asarray(lanes, dtype=np.bool_)
        started = np.flatnonzero(chosen)
        self._plan(started)
        self.task.kernels.start(self.lanes, chosen, self.obs)
        self._follow(started)
        return self.obs

    def step(self, action: Action) -> StepResult:
        np.copyto(self.action, action.cpu().numpy())
        num_ended = self.move()
        if num_ended:
            if num_ended < 0:
                self._refuse(-1 - num_ended)
            self._follow(np.flatnonzero(self.result.terminated | self.result.truncated))
        return self.result

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        try:
            self._assign(values, lanes)
        except SettingsError as error:
            raise EnvError(error.message, code="E0521") from error

    def require_parameters(self, names: Sequence[str]) -> None:
        try:
            for name in names:
                self.task.column(name)
        except SettingsError as error:
            raise EnvError(error.message, code="E0521") from error

    def _assign(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        for name, value in values.items():
            column = self.task.column(name)
            rows = slice(None) if lanes is None else np.asarray(lanes)
            numbers = [self.task.number(name, each) for each in np.atleast_1d(np.asarray(value)).tolist()]
            self.parameters[rows, column] = numbers if np.ndim(value) else numbers[0]

    def begin_anew(self, played: Sequence[State]) -> Observation:
        self.episode.fill(max(int(np.max(state["episode"])) for state in played))
        return self.reset()

    def render(self) -> Array | None:
        """Returns Gymnasium's image of the first lane."""
        numbers = [name for name, default in self.task.parameters.items() if type(default) is float]
        parameters = {name: float(self.parameters[0, self.task.column(name)]) for name in numbers}
        action = float(self.action[0].flat[0]) if self.age[0] else None
        return self.canvas.draw(self.state[0], parameters, action)

    @property
    def frames_per_second(self) -> float:
        return self.task.frames_per_second

    def close(self) -> None:
        self.canvas.close()

    def load_state_dict(self, state: State) -> None:
        require_within("age", state["age"], 0, MOST_COUNTED)
        require_within("episode", state["episode"], -1, MOST_COUNTED)
        super().load_state_dict(state)
        self._plan(np.arange(self.num_lanes))

    def _follow(self, started: Array) -> None:
        """Counts the episodes that started and draws seeds of the next ones."""
        self.episode[started] += 1
        self._plan(started)
        if self.task.first_obs is not None:
            self.obs[started] = self.task.first_obs(self.state[started])

    def _plan(self, lanes: Array) -> None:
        """Draws the seeds of the lanes' next episodes, by lane index over all ranks."""
        groups = ((self.first_lane + lanes) // self.group_size).tolist()
        following = (self.episode[lanes] + 1).tolist()
        attempt = 0  # no lane breaks
        counters = [(group, episode, attempt) for group, episode in zip(groups, following, strict=True)]
        self.seeds[lanes] = self.rng.seeds_for("reset", counters)

    def _refuse(self, lane: int) -> None:
        found = self.action[lane].tolist()
        if isinstance(self.spec.action, DiscreteSpec):
            raise QuintainError(f"the policy chose action {found} for lane {lane}, of {self.spec.action}", code="E0101")
        raise EnvError(
            f"the policy chose an action that is not finite for lane {lane}: {found}. Lower learning_rate, or set "
            f"normalize_obs",
            code="E0512",
        )
