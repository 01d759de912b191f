"""Gymnasium environments as lanes: by id, class, factory or instance, stepped one after another in this process.

Each lane is reset with a seed that is a function of (seed, lane, episode), so a lane's episodes do not depend on its
neighbours, and a resumed run can rebuild the middle of an episode by replaying the actions since its reset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.data import fields as f
from quintain.data.env_values import from_env, is_in_range, to_env
from quintain.data.spec import BoxSpec, DiscreteSpec, build, choice_sizes, flatten, leaves
from quintain.envs.action_log import ActionLog
from quintain.envs.base import Env, StepResult
from quintain.envs.masks import MASK, MaskSource, checked_rows, declared_mask, masked, offered, read_mask
from quintain.envs.parameters import ParameterLog, Parameters, lane_rows, originals, set_attributes
from quintain.envs.spaces import behavior_spec, text_notes
from quintain.errors import EnvError, QuintainError

if TYPE_CHECKING:
    from quintain.rng import Rng
    from quintain.typing import Array, State

_ONE = np.ones(1, np.bool_)

EnvFactory = Callable[[], Any]
"""Makes one Gymnasium environment."""


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
    ) -> None:
        self.name = name
        self.group_size = group_size
        self.first_lane = first_lane
        self.num_lanes = len(factories)
        self.rng = rng
        self.envs = [_create(name, factory) for factory in factories]
        self.episode: Array = np.full(self.num_lanes, -1, dtype=np.int64)
        self.first_reset: tuple[Any, Any] | None = None
        self._describe(encode_text)
        self._allocate()
        self.drift = ""

    def _describe(self, encode_text: bool) -> None:
        """Finds out what the policy sees and chooses, and whether there are masks."""
        first = self.envs[0]
        spaces = (self.name, first.observation_space, first.action_space)
        spec = behavior_spec(*spaces, encode_text=encode_text)
        self.mask_source: MaskSource = declared_mask(first, first.observation_space, spec.action)
        if self.mask_source == "obs":
            spec = behavior_spec(*spaces, encode_text=encode_text, leave_out=MASK)
        elif not self.mask_source and choice_sizes(spec.action):
            # Only a reset shows what is in info. It is the lane's first one, and is not repeated when it is asked for.
            self.first_reset = self._start(0, episode=0)
            self.mask_source = "info" if MASK in (self.first_reset[1] or {}) else ""
        self.spec = masked(spec, self.mask_source)
        self.notes = text_notes(self.name, first.observation_space, encode_text=encode_text)

    def _allocate(self) -> None:
        lanes = self.num_lanes
        self.obs_leaves = leaves(self.spec.obs, f.OBS)
        self.action_leaves = leaves(self.spec.action, f.ACTION)
        self.has_plain_obs = isinstance(self.spec.obs, BoxSpec)
        self.obs = {name: np.zeros((lanes, *leaf.shape), leaf.dtype) for name, leaf in self.obs_leaves.items()}
        self.final_obs = {name: np.zeros_like(rows) for name, rows in self.obs.items()}
        # Built once: the same nested structure of the same arrays is returned at every step.
        self.obs_view = build(self.spec.obs, self.obs, f.OBS)
        self.final_view = build(self.spec.obs, self.final_obs, f.OBS)
        self.mask: Array | None = np.ones((lanes, self.spec.mask_size), np.bool_) if self.spec.mask_size else None
        self.reward: Array = np.zeros(lanes, dtype=np.float32)
        self.terminated: Array = np.zeros(lanes, dtype=np.bool_)
        self.truncated: Array = np.zeros(lanes, dtype=np.bool_)
        self.action_log = ActionLog(lanes, self.action_leaves)
        self.parameter_log = ParameterLog(lanes)
        self.as_made: list[dict[str, Any]] = [{} for _ in range(lanes)]

    def reset(self, lanes: Any = None) -> Any:
        if lanes is None and self.group_size > 1:
            # Lanes of a group may have begun different numbers of episodes; the next one is the same for all of them.
            groups = self.episode.reshape(-1, self.group_size)
            groups[:] = groups.max(axis=1, keepdims=True)
        for lane in range(self.num_lanes) if lanes is None else np.flatnonzero(np.asarray(lanes)):
            self._reset_lane(int(lane))
        return self.obs_view

    def action_mask(self) -> Array | None:
        return self.mask

    def step(self, action: Any) -> StepResult:
        chosen = {k: v.cpu().numpy() for k, v in flatten(self.spec.action, action, f.ACTION).items()}
        self.action_log.append(chosen)
        for lane, (env, lane_action) in enumerate(zip(self.envs, self._lane_actions(chosen), strict=True)):
            try:
                obs, reward, terminated, truncated, info = env.step(lane_action)
            except Exception as error:
                raise EnvError(
                    f"env {self.name!r} failed in step() on lane {self.first_lane + lane}, episode "
                    f"{self.episode[lane]}, action {lane_action}: {type(error).__name__}: {error}",
                    code="E0501",
                ) from error
            self.reward[lane] = reward
            self.terminated[lane] = terminated
            self.truncated[lane] = truncated
            if terminated or truncated:
                self._store(self.final_obs, lane, obs, "step")
                self._reset_lane(lane)
            else:
                self._store(self.obs, lane, obs, "step")
                self._store_mask(lane, obs, info)
        return StepResult(
            self.obs_view, self.reward, self.terminated, self.truncated, self.final_view, action_mask=self.mask
        )

    @property
    def mirror(self) -> Any:
        return offered(self.envs[0], "mirror")

    def set_parameters(self, values: Parameters, lanes: Any = None) -> None:
        # Made with other parameters than those that are in force from now on.
        self.first_reset = None
        ids = [int(lane) for lane in (range(self.num_lanes) if lanes is None else lanes)]
        for lane, row in zip(ids, lane_rows(values, ids), strict=True):
            self._assign(lane, row)
            self.parameter_log.add(lane, int(self.action_log.length - self.action_log.start[lane]), row)

    def _assign(self, lane: int, values: Mapping[str, Any]) -> None:
        if values:
            owner = _unwrapped(self.envs[lane])
            self.as_made[lane] = {**originals(owner, values), **self.as_made[lane]}
            set_attributes(owner, self.name, values)

    def render(self) -> Array | None:
        try:
            frame = self.envs[0].render()
        except Exception as error:
            reason = " ".join(str(error).split())
            raise EnvError(f"env {self.name!r} cannot draw itself: {reason}", code="E0522") from error
        return None if frame is None else np.asarray(frame)

    @property
    def frames_per_second(self) -> float:
        return float((getattr(self.envs[0], "metadata", None) or {}).get("render_fps", 30))

    def close(self) -> None:
        for env in self.envs:
            env.close()

    @property
    def exactness(self) -> str:
        return f"statistical: {self.drift}" if self.drift else "exact"

    def state_dict(self) -> State:
        obs = {name: rows.copy() for name, rows in self.obs.items()}
        return {
            "obs": obs,
            "episode": self.episode.copy(),
            "action_log": self.action_log.state_dict(),
            "parameter_log": self.parameter_log.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Rebuilds every lane by replaying its episode, and says so if that did not give the stored observation."""
        self.first_reset = None
        self.action_log.load_state_dict(state["action_log"])
        self.parameter_log.load_state_dict(state["parameter_log"])
        np.copyto(self.episode, state["episode"])
        for each in range(self.num_lanes):
            self._assign(each, {**self.as_made[each], **self.parameter_log.before[each]})
        drifted = []
        for lane in np.flatnonzero(self.episode >= 0):
            self._replay(int(lane))
            if any(rows[lane].tobytes() != np.asarray(state["obs"][k])[lane].tobytes() for k, rows in self.obs.items()):
                drifted.append(lane)
        if drifted:
            self.drift = (
                f"env {self.name!r} is not repeatable: replaying its seed and actions gave another observation in "
                f"lane {self.first_lane + drifted[0]}" + (f" and {len(drifted) - 1} more" if len(drifted) > 1 else "")
            )

    def begin_anew(self, played: Sequence[State]) -> Any:
        self.episode.fill(max(int(np.max(state["episode"])) for state in played))
        return self.reset()

    def _replay(self, lane: int) -> None:
        env = self.envs[lane]
        obs, info = self._start(lane, int(self.episode[lane]))
        actions = self.action_log.since_reset(lane)
        for step, chosen in enumerate(actions):
            self._assign(lane, self.parameter_log.at(lane, step))
            rows = {name: np.asarray(value)[None] for name, value in chosen.items()}
            obs, _, _, _, info = env.step(self._lane_actions(rows)[0])
        self._assign(lane, self.parameter_log.at(lane, len(actions)))
        self._store(self.obs, lane, obs, "step")
        self._store_mask(lane, obs, info)

    def _lane_actions(self, chosen: Mapping[str, Array]) -> Sequence[Any]:
        """Returns one action per row as the environment takes it.

        Environments may keep what they are given: numbers for choices, rows of a fresh array otherwise.
        """
        columns: dict[str, Any] = {}
        for name, leaf in self.action_leaves.items():
            rows = to_env(leaf, chosen[name])
            columns[name] = rows.tolist() if isinstance(leaf, DiscreteSpec) else rows
        if len(columns) == 1 and f.ACTION in columns:
            single: Sequence[Any] = columns[f.ACTION]
            return single
        num_rows = len(next(iter(columns.values())))
        return [build(self.spec.action, {k: rows[i] for k, rows in columns.items()}, f.ACTION) for i in range(num_rows)]

    def _reset_lane(self, lane: int) -> None:
        self.episode[lane] += 1
        self.action_log.start_episode(lane)
        self.parameter_log.start_episode(lane)
        if lane == 0 and self.first_reset is not None:
            (obs, info), self.first_reset = self.first_reset, None
        else:
            obs, info = self._start(lane, int(self.episode[lane]))
        self._store(self.obs, lane, obs, "reset")
        self._store_mask(lane, obs, info)

    def _start(self, lane: int, episode: int) -> tuple[Any, Any]:
        incarnation = 0  # counts restarts of a crashed environment; in this process a crash ends the run
        # Among the lanes of all ranks, so that the same lane has the same episodes on whichever rank it is.
        group = (self.first_lane + lane) // self.group_size
        seed = self.rng.seed_for("reset", group, episode, incarnation)
        try:
            obs, info = self.envs[lane].reset(seed=seed)
        except Exception as error:
            raise EnvError(
                f"env {self.name!r} failed in reset() on lane {self.first_lane + lane}: "
                f"{type(error).__name__}: {error}",
                code="E0502",
            ) from error
        return obs, info

    def _store(self, rows: Mapping[str, Array], lane: int, obs: Any, call: str) -> None:
        if self.has_plain_obs:
            self._store_leaf(rows[f.OBS], f.OBS, lane, obs, call)
            return
        try:
            named = flatten(self.spec.obs, obs, f.OBS)
        except (KeyError, IndexError, TypeError) as error:
            raise EnvError(
                f"env {self.name!r} {call}() returned an observation without {error}, declared {self.spec.obs}",
                code="E0511",
            ) from error
        for name, value in named.items():
            self._store_leaf(rows[name], name, lane, from_env(self.obs_leaves[name], value), call)

    def _store_leaf(self, rows: Array, name: str, lane: int, value: Any, call: str) -> None:
        if np.shape(value) != rows.shape[1:]:
            raise EnvError(
                f"env {self.name!r} {call}() returned {name} of shape {np.shape(value)}, declared "
                f"{self.obs_leaves[name]}. Make the observation and observation_space agree",
                code="E0511",
            )
        if not self.has_plain_obs and not is_in_range(self.obs_leaves[name], value):
            raise EnvError(
                f"env {self.name!r} {call}() returned {name} with a choice that it did not declare: counted from zero, "
                f"{value} is not in {self.obs_leaves[name]}",
                code="E0511",
            )
        rows[lane] = value

    def _store_mask(self, lane: int, obs: Any, info: Any) -> None:
        if self.mask is not None:
            found = read_mask(self.name, self.mask_source, self.envs[lane], obs, info)
            self.mask[lane] = checked_rows(self.name, self.spec.action, found, _ONE)[0]


def _unwrapped(env: Any) -> Any:
    return getattr(env, "unwrapped", env)


def _create(name: str, factory: EnvFactory) -> Any:
    try:
        env = factory()
    except QuintainError:
        raise
    except Exception as error:
        raise EnvError(f"env {name!r} cannot be created: {type(error).__name__}: {error}", code="E0505") from error
    for needed in ("reset", "step", "observation_space", "action_space"):
        if not hasattr(env, needed):
            raise EnvError(
                f"env {name!r} made a {type(env).__name__} without {needed}; it must be a Gymnasium environment",
                code="E0506",
            )
    return env
