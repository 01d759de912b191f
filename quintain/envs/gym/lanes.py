"""Gymnasium environments as lanes: by id, class, factory or instance, stepped in this process or by workers.

Each lane is reset with a seed that is a function of (seed, lane, episode, attempt). So a lane's episodes do not depend
on other lanes or on the process, and a resumed run rebuilds the state within an episode by replaying the actions since
its reset. An attempt is one try at an episode: a lane whose environment broke starts the episode again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quintain.core.state import MOST_COUNTED, require_shapes, require_within
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, flatten
from quintain.envs.action_checks import ActionChecks
from quintain.envs.base import EPISODE, Env, StepResult
from quintain.envs.gym.masks import MaskSource, offered
from quintain.envs.hosts.action_log import ActionLog
from quintain.envs.hosts.faults import CONTRACT_BREACHES, FaultKeeper, LaneFault
from quintain.envs.hosts.lane_host import EnvFactory, HostOptions, LaneHost
from quintain.envs.hosts.lane_rows import LaneRows
from quintain.envs.parameters import LaneParameters, ParameterLog, Parameters, lane_rows

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Action, Array, Info, LaneIds, LaneMask, Mirror, Observation, State


class Crew(Protocol):
    """Hosts the lanes' environments; results are written to the shared rows."""

    spec: BehaviorSpec
    rows: LaneRows
    notes: tuple[str, ...]
    mask_source: MaskSource

    def reset(self, lanes: Sequence[int]) -> list[LaneFault]: ...
    def restart(self, lanes: Sequence[int], parameters: LaneParameters) -> list[LaneFault]: ...
    def step(self, lanes: Sequence[int], *, autoreset: bool = True) -> list[LaneFault]: ...
    def set_parameters(self, values: LaneParameters) -> list[LaneFault]: ...
    def require_parameters(self, names: Sequence[str]) -> list[LaneFault]: ...
    def put_parameters_back(self, values: LaneParameters) -> list[LaneFault]: ...
    def forget_first_reset(self) -> None: ...
    def render(self) -> tuple[Array | None, float]: ...
    def close(self) -> None: ...


class LaneEnv(Env):
    """Steps N Gymnasium environments, one per lane."""

    def __init__(
        self,
        name: str,
        factories: Sequence[EnvFactory],
        rng: Rng,
        *,
        group_size: int = 1,
        encode_text: bool = False,
        first_lane: int = 0,
        use_masks: bool = True,
        info_metrics: Sequence[str] = (),
        faults: FaultKeeper | None = None,
    ) -> None:
        numbered = dict(enumerate(factories))
        options = HostOptions(group_size, encode_text, first_lane, use_masks, info_metrics)
        host = LaneHost(name, numbered, rng, options)
        host.create()
        spec = host.describe()
        rows = LaneRows(spec, len(factories), num_metrics=len(options.metric_names))
        host.attach(spec, rows, host.mask_source)
        self.host = host
        self._install(name, host, rng, options, faults)

    def _install(self, name: str, crew: Crew, rng: Rng, options: HostOptions, faults: FaultKeeper | None) -> None:
        self.name = name
        self.pace = 30.0
        """Frames per second, as the last drawn lane says."""
        self.crew = crew
        self.num_lanes = num_lanes = len(crew.rows.episode)
        self.group_size = options.group_size
        self.metric_names = options.metric_names
        self.first_lane = options.first_lane
        self.faults = faults or FaultKeeper()
        # Training and evaluation share one budget keeper, and each has a lane 0.
        self.team = rng.path
        self.spec = crew.spec
        self.notes = crew.notes
        self.mask_source = crew.mask_source
        rows = self.rows = crew.rows
        rows.episode.fill(-1)
        self.obs, self.final_obs, self.mask = rows.obs, rows.final_obs, rows.mask
        self.episode, self.attempt = rows.episode, rows.attempt
        self.begun: Array = np.full(num_lanes, -1, np.int64)
        """The episode in which the game of each lane began; an earlier one where games go on after an episode's end."""
        self.begun_attempt: Array = np.zeros(num_lanes, np.int64)
        """The attempt in which it began, where it was an earlier episode."""
        self.action_checks = ActionChecks(self.spec, num_lanes, options.first_lane)
        self.action_log = ActionLog(num_lanes, self.action_checks.leaves)
        self.parameter_log = ParameterLog(num_lanes)
        self.every_lane = list(range(num_lanes))
        self.down: Array = np.zeros(num_lanes, dtype=np.bool_)
        self.aborted: Array = np.zeros(num_lanes, dtype=np.bool_)
        self.drift = ""
        self.num_steps = 0
        """Steps since creation; failures are counted against it."""

    @property
    def envs(self) -> list[GymEnv]:
        """The environments, if they are in this process."""
        return list(self.host.envs.values())

    def be_watched(self) -> None:
        self.host.is_watched = True

    @property
    def pulse(self) -> int:
        return int(self.rows.marks.sum())

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        wanted = self.every_lane if lanes is None else np.flatnonzero(np.asarray(lanes)).tolist()
        if lanes is None:
            # Lanes of a group may have played different numbers of episodes; from here on they begin alike.
            latest = self.episode.reshape(-1, self.group_size).max(axis=1)
            self.episode[:] = np.repeat(latest, self.group_size) + 1
        else:
            self.episode[wanted] += 1
        self.attempt[wanted] = 0
        self.start_episodes(wanted)
        faults = self.crew.reset([lane for lane in wanted if not self.down[lane]])
        faults += self._restart(down) if (down := [lane for lane in wanted if self.down[lane]]) else []
        self.down[wanted] = False
        self._take_down(faults, num_aborted=0)
        while self.down[wanted].any() and self.faults.spent is None:
            self._bring_up()
        return self.rows.obs_view

    def action_mask(self) -> Array | None:
        return self.mask

    def step(self, action: Action) -> StepResult:
        return self._conclude(self.crew.step(self._choose(action)))

    def _choose(self, action: Action) -> list[int]:
        """Writes the actions to the rows; returns the lanes that can be stepped."""
        rows = self.rows
        chosen = {k: v.cpu().numpy() for k, v in flatten(self.spec.action, action, f.ACTION).items()}
        for name, values in chosen.items():
            self.action_checks.refuse_impossible(name, values, self.mask)
            rows.action[name][...] = values
        self.action_log.append(chosen)
        return np.flatnonzero(~self.down).tolist() if _has_any(self.down) else self.every_lane

    def _conclude(self, faults: Sequence[LaneFault]) -> StepResult:
        """Updates episode counters after a step, and restarts environments that broke."""
        self.num_steps += 1
        rows, was_down = self.rows, _has_any(self.down)
        if was_down or faults:
            self._abort(faults)
        info: Info | None = None
        if _has_any(rows.terminated) or _has_any(rows.truncated):
            ended = np.flatnonzero(rows.terminated | rows.truncated)
            going_on = ended[rows.continues[ended]]
            first = going_on[self.begun[going_on] == self.episode[going_on]]
            self.begun_attempt[first] = self.attempt[first]
            self.episode[ended] += 1
            self.attempt[ended] = 0
            self.start_episodes(ended[~rows.continues[ended]])
            info = self.metrics_of(ended)
        if was_down or faults:
            self.faults.succeeded((self.first_lane + np.flatnonzero(~self.aborted)).tolist(), self.team)
            self._take_down(faults, num_aborted=None)
            self._bring_up()
            aborted: Array | None = self.aborted.copy()
        else:
            aborted = None
            self.faults.succeeded(range(self.first_lane, self.first_lane + self.num_lanes), self.team)
        return StepResult(
            rows.obs_view,
            rows.reward,
            rows.terminated,
            rows.truncated,
            rows.final_view,
            info=info,
            action_mask=self.mask,
            aborted=aborted,
        )

    def metrics_of(self, ended: Array) -> Info | None:
        """Returns the values of info at the end of these lanes' episodes, one per lane or NaN."""
        if np.isnan(self.rows.metrics[ended]).all():
            return None
        found = np.full(self.rows.metrics.shape, np.nan)
        found[ended] = self.rows.metrics[ended]
        return {EPISODE: dict(zip(self.metric_names, found.T, strict=True))}

    @property
    def mirror(self) -> Mirror | None:
        found: Mirror | None = offered(self.envs[0], "mirror")
        return found

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        ids = self.every_lane if lanes is None else [int(lane) for lane in lanes]
        chosen = dict(zip(ids, lane_rows(values, ids), strict=True))
        # One that is down gets them when it is made anew.
        self._set_parameters({lane: mine for lane, mine in chosen.items() if not self.down[lane]})
        for lane, mine in chosen.items():
            self.parameter_log.add(lane, int(self.action_log.length - self.action_log.start[lane]), mine)

    def require_parameters(self, names: Sequence[str]) -> None:
        self._lose(self.crew.require_parameters(names))

    def _set_parameters(self, values: LaneParameters) -> None:
        if changed := {lane: mine for lane, mine in values.items() if mine}:
            self._lose(self.crew.set_parameters(changed))

    def _lose(self, faults: Sequence[LaneFault]) -> None:
        """Takes down lanes that were lost between two steps, within their episodes."""
        for fault in faults:
            self._take_down([fault], num_aborted=len(fault.lanes))

    def render(self) -> Array | None:
        frame, self.pace = self.crew.render()
        return frame

    @property
    def renders_ends(self) -> bool:
        return True

    @property
    def frames_per_second(self) -> float:
        return self.pace

    def close(self) -> None:
        self.crew.close()

    @property
    def exactness(self) -> str:
        return f"statistical: {self.drift}" if self.drift else "exact"

    def state_dict(self) -> State:
        return {
            "obs": {name: rows.copy() for name, rows in self.obs.items()},
            "episode": self.episode.copy(),
            "incarnation": self.attempt.copy(),
            "down": self.down.copy(),
            "action_log": self.action_log.state_dict(),
            "parameter_log": self.parameter_log.state_dict(),
            # Only where a game went on after an episode's end.
            **({} if (self.begun == self.episode).all() else {"begun": self.begun.copy()}),
            **({"begun_attempt": self.begun_attempt.copy()} if self.begun_attempt.any() else {}),
            # Only where there are any, because most runs have none.
            **({"faults": counted} if (counted := self.faults.counted(*self._members)) else {}),
        }

    @property
    def _members(self) -> tuple[range, str, int]:
        """The lanes, team and step that failures are counted for."""
        return range(self.first_lane, self.first_lane + self.num_lanes), self.team, self.num_steps

    def load_state_dict(self, state: State) -> None:
        """Rebuilds every lane by replaying its episode; reports a difference from the stored observation."""
        # "incarnation" is the name of `attempt` in checkpoints.
        for name, own in (
            ("obs", self.obs),
            ("episode", self.episode),
            ("incarnation", self.attempt),
            ("down", self.down),
        ):
            require_shapes(name, state[name], own)
        require_within("episode", state["episode"], -1, MOST_COUNTED)
        require_within("incarnation", state["incarnation"], 0, MOST_COUNTED)
        self.crew.forget_first_reset()
        self.faults.recount(*self._members, state.get("faults", {}))
        self.action_log.load_state_dict(state["action_log"])
        self.parameter_log.load_state_dict(state["parameter_log"])
        np.copyto(self.episode, state["episode"])
        np.copyto(self.attempt, state["incarnation"])
        for own, name, usual in ((self.begun, "begun", self.episode), (self.begun_attempt, "begun_attempt", None)):
            require_shapes(name, saved := state.get(name, np.zeros_like(own) if usual is None else usual), own)
            require_within(name, saved, -1, MOST_COUNTED)
            np.copyto(own, saved)
        # What is down here stays down until it is made anew, whatever it was when the state was saved.
        self.down |= np.asarray(state["down"])
        up = np.flatnonzero(~self.down).tolist()
        self._lose(self.crew.put_parameters_back({lane: self.parameter_log.before[lane] for lane in up}))
        replayed = [lane for lane in up if self.episode[lane] >= 0 and not self.down[lane]]
        broken = self._replay(replayed)
        saved = {name: np.asarray(rows) for name, rows in state["obs"].items()}
        drifted = [
            lane
            for lane in replayed
            if lane not in broken and any(r[lane].tobytes() != saved[k][lane].tobytes() for k, r in self.obs.items())
        ]
        for name, rows in self.obs.items():
            rows[self.down] = saved[name][self.down]
        if drifted or broken:
            self.drift = self._describe_drift(drifted, list(broken.values()))

    def _describe_drift(self, drifted: Sequence[int], faults: Sequence[LaneFault]) -> str:
        """Describes why lanes differ from the saved state; broken environments first, because they can be repaired."""
        if faults:
            more = f" (and in {len(faults) - 1} more lanes)" if len(faults) > 1 else ""
            return f"{faults[0].as_error().message}{more}, while its episode was replayed"
        more = f" and {len(drifted) - 1} more" if len(drifted) > 1 else ""
        return (
            f"env {self.name!r} is not repeatable: replaying its seed and actions gave another observation in lane "
            f"{self.first_lane + drifted[0]}{more}"
        )

    def begin_anew(self, played: Sequence[State]) -> Observation:
        self.episode.fill(max(int(np.max(state["episode"])) for state in played))
        return self.reset()

    def _replay(self, lanes: Sequence[int]) -> dict[int, LaneFault]:
        """Replays the actions since the last reset; returns the lanes that broke, which are down now, and how."""
        faults = self._reset_begun(lanes) if lanes else []
        actions = {lane: self.action_log.since_reset(lane) for lane in lanes}
        broken = {lane: fault for fault in faults for lane in fault.lanes}
        for i in range(max(map(len, actions.values()), default=0)):
            playing = [lane for lane in lanes if i < len(actions[lane]) and lane not in broken]
            self._set_parameters({lane: self.parameter_log.at(lane, i) for lane in playing})
            for lane in playing:
                for name, value in actions[lane][i].items():
                    self.rows.action[name][lane] = value
            found = self.crew.step(playing, autoreset=False) if playing else []
            broken |= {lane: fault for fault in found for lane in fault.lanes}
            faults += found
        whole = [lane for lane in lanes if lane not in broken]
        self._set_parameters({lane: self.parameter_log.at(lane, len(actions[lane])) for lane in whole})
        self._take_down(faults, num_aborted=None)
        return broken

    def _reset_begun(self, lanes: Sequence[int]) -> list[LaneFault]:
        """Resets lanes to where their games began, with the seeds of then."""
        episode, attempt = self.episode.copy(), self.attempt.copy()
        is_earlier = self.begun != self.episode
        self.episode[is_earlier], self.attempt[is_earlier] = self.begun[is_earlier], self.begun_attempt[is_earlier]
        faults = self.crew.reset(lanes)
        np.copyto(self.episode, episode)
        np.copyto(self.attempt, attempt)
        return faults

    def start_episodes(self, lanes: Sequence[int] | Array) -> None:
        """Notes that the episodes of these lanes begin here."""
        self.begun[lanes] = self.episode[lanes]
        self.begun_attempt[lanes] = 0
        for lane in lanes:
            self.action_log.start_episode(int(lane))
            self.parameter_log.start_episode(int(lane))

    def _abort(self, faults: Sequence[LaneFault]) -> None:
        """Discards the step in lanes that were down or broke in it; earlier steps are kept."""
        np.copyto(self.aborted, self.down)
        for fault in faults:
            # A lane that broke in the reset after an end has truly ended its episode.
            if fault.call == "step":
                self.aborted[list(fault.lanes)] = True
        for values in (self.rows.reward, self.rows.terminated, self.rows.truncated):
            values[self.aborted] = 0
        self.start_episodes(np.flatnonzero(self.aborted))

    def _take_down(self, faults: Sequence[LaneFault], *, num_aborted: int | None) -> None:
        for fault in faults:
            self.down[list(fault.lanes)] = True
        for fault in faults:
            is_step = fault.call == "step"
            cut = (len(fault.lanes) if is_step else 0) if num_aborted is None else num_aborted
            if fault.code in CONTRACT_BREACHES and self.action_log.length <= 1:
                # Broken from the start: making it anew would only say the same again.
                raise fault.as_error() from fault.cause
            self.faults.take(fault, self.team, step=self.num_steps, first_lane=self.first_lane, num_aborted=cut)

    def _bring_up(self) -> None:
        """Makes the environments of lanes that are down again, once, and restarts their episodes as a new attempt."""
        if self.faults.spent is not None or not self.down.any():
            return
        lanes = np.flatnonzero(self.down).tolist()
        self.faults.wait_before_restart([self.first_lane + lane for lane in lanes], self.team)
        self.attempt[lanes] += 1
        faults = self._restart(lanes)
        self.down[lanes] = False
        self._take_down(faults, num_aborted=0)
        self.faults.whole_team_is_down(faults[0] if self.down.all() else None, self.team)

    def _restart(self, lanes: Sequence[int]) -> list[LaneFault]:
        return self.crew.restart(lanes, {lane: self.parameter_log.before[lane] for lane in lanes})


def _has_any(flags: Array) -> bool:
    # For the few lanes there are, faster than asking numpy.
    return True in flags.tolist()
