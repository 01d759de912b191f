"""Gymnasium environments as lanes: by id, class, factory or instance, stepped one after another in this process.

Each lane is reset with a seed that is a function of (seed, lane, episode), so a lane's episodes do not depend on its
neighbours, and a resumed run can rebuild the middle of an episode by replaying the actions since its reset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.data.spec import DiscreteSpec
from quintain.envs.action_log import ActionLog
from quintain.envs.base import Env, StepResult
from quintain.envs.spaces import behavior_spec
from quintain.errors import EnvError, QuintainError

if TYPE_CHECKING:
    import torch

    from quintain.rng import Rng
    from quintain.typing import Array, State

EnvFactory = Callable[[], Any]
"""Makes one Gymnasium environment."""


class LaneEnv(Env):
    """Steps N Gymnasium environments, one per lane."""

    def __init__(self, name: str, factories: Sequence[EnvFactory], rng: Rng) -> None:
        self.name = name
        self.num_lanes = len(factories)
        self.rng = rng
        self.envs = [_create(name, factory) for factory in factories]
        self.spec = behavior_spec(name, self.envs[0].observation_space, self.envs[0].action_space)
        lanes, obs = self.num_lanes, self.spec.obs
        self.obs: Array = np.zeros((lanes, *obs.shape), dtype=obs.dtype)
        self.final_obs: Array = np.zeros_like(self.obs)
        self.reward: Array = np.zeros(lanes, dtype=np.float32)
        self.terminated: Array = np.zeros(lanes, dtype=np.bool_)
        self.truncated: Array = np.zeros(lanes, dtype=np.bool_)
        self.episode: Array = np.full(lanes, -1, dtype=np.int64)
        self.is_discrete = isinstance(self.spec.action, DiscreteSpec)
        self.first_action = self.spec.action.start if isinstance(self.spec.action, DiscreteSpec) else 0
        shape, dtype = ((), "int64") if self.is_discrete else (self.envs[0].action_space.shape, "float32")
        self.action_log = ActionLog(lanes, shape, dtype)
        self.drift = ""

    def reset(self, lanes: Any = None) -> Array:
        for lane in range(self.num_lanes) if lanes is None else np.flatnonzero(np.asarray(lanes)):
            self._reset_lane(int(lane))
        return self.obs

    def step(self, action: torch.Tensor) -> StepResult:
        chosen = action.cpu().numpy()
        self.action_log.append(chosen)
        # Environments may keep what they are given: numbers for choices, rows of a fresh array otherwise.
        actions = (chosen + self.first_action).tolist() if self.is_discrete else chosen.copy()
        for lane, env in enumerate(self.envs):
            try:
                obs, reward, terminated, truncated, _ = env.step(actions[lane])
            except Exception as error:
                raise EnvError(
                    f"env {self.name!r} failed in step() on lane {lane}, episode {self.episode[lane]}, action "
                    f"{actions[lane]}: {type(error).__name__}: {error}",
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
        return StepResult(self.obs, self.reward, self.terminated, self.truncated, self.final_obs)

    def close(self) -> None:
        for env in self.envs:
            env.close()

    @property
    def exactness(self) -> str:
        return f"statistical: {self.drift}" if self.drift else "exact"

    def state_dict(self) -> State:
        return {"obs": self.obs.copy(), "episode": self.episode.copy(), "action_log": self.action_log.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Rebuilds every lane by replaying its episode, and says so if that did not give the stored observation."""
        self.action_log.load_state_dict(state["action_log"])
        np.copyto(self.episode, state["episode"])
        drifted = []
        for lane in np.flatnonzero(self.episode >= 0):
            self._replay(int(lane))
            if self.obs[lane].tobytes() != np.asarray(state["obs"])[lane].tobytes():
                drifted.append(lane)
        if drifted:
            self.drift = (
                f"env {self.name!r} is not repeatable: replaying its seed and actions gave another observation in "
                f"lane {drifted[0]}" + (f" and {len(drifted) - 1} more" if len(drifted) > 1 else "")
            )

    def _replay(self, lane: int) -> None:
        env, actions = self.envs[lane], self.action_log.since_reset(lane)
        obs, _ = env.reset(seed=self._seed(lane))
        for chosen in actions:
            obs = env.step(int(chosen) + self.first_action if self.is_discrete else chosen.copy())[0]
        self._store(self.obs, lane, obs, "step")

    def _reset_lane(self, lane: int) -> None:
        self.episode[lane] += 1
        self.action_log.start_episode(lane)
        try:
            obs, _ = self.envs[lane].reset(seed=self._seed(lane))
        except Exception as error:
            raise EnvError(
                f"env {self.name!r} failed in reset() on lane {lane}: {type(error).__name__}: {error}", code="E0502"
            ) from error
        self._store(self.obs, lane, obs, "reset")

    def _seed(self, lane: int) -> int:
        incarnation = 0  # counts restarts of a crashed environment; in this process a crash ends the run
        return self.rng.seed_for("reset", lane, int(self.episode[lane]), incarnation)

    def _store(self, rows: Array, lane: int, obs: Any, call: str) -> None:
        if np.shape(obs) != self.spec.obs.shape:
            raise EnvError(
                f"env {self.name!r} {call}() returned observation shape {np.shape(obs)}, declared "
                f"{self.spec.obs}. Make the observation and observation_space agree",
                code="E0511",
            )
        rows[lane] = obs


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
