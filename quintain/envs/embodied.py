"""Base class for simulators that step all lanes at once and write each step directly into the shared rollout.

A subclass writes into the memory that the learner reads; without a rollout, as in an evaluation, into memory of the
environment. The values are the same either way: a reward cannot depend on a rollout.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from quintain.data import fields as f
from quintain.data.rollout import TORCH_DTYPES
from quintain.data.spec import BehaviorSpec, build, flatten, leaves
from quintain.envs.base import Env, StepResult
from quintain.envs.events import EnvEventManager
from quintain.errors import SpecMismatch

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Action, Info, LaneMask, Observation, Tree

_ENDS = (f.TERMINATED, f.TRUNCATED, f.DONE)


class TaskState(NamedTuple):
    """State of each lane after a step: [N] bool, and metrics by name."""

    success: torch.Tensor
    fail: torch.Tensor
    metrics: Mapping[str, torch.Tensor] = {}


class EmbodiedEnv(Env):
    """Steps, rewards, ends, records and resets in a fixed order; a subclass implements each for its simulator.

    Tensors of a subclass are saved in checkpoints; list exceptions in `not_state` (in addition to those here).
    """

    not_state: ClassVar[frozenset[str]] = frozenset(
        {"device", "own", "rows", "lent", "final_obs", "current_rollout_step", "reward_terms"}
    )

    def __init__(
        self, spec: BehaviorSpec, num_lanes: int, *, max_episode_steps: int | None = 300, device: str = "cpu"
    ) -> None:
        self.spec = spec
        self.num_lanes = num_lanes
        self.max_episode_steps = max_episode_steps
        self.device = torch.device(device)
        self.elapsed_steps = torch.zeros(num_lanes, dtype=torch.int64, device=self.device)
        self.last_action = {
            name: torch.zeros((num_lanes, *leaf.shape), dtype=TORCH_DTYPES[leaf.dtype], device=self.device)
            for name, leaf in leaves(spec.action, f.ACTION).items()
        }
        self.reward_terms: dict[str, torch.Tensor] = {}
        """[N] reward terms by name that `write_reward` may store; their means are reported."""
        self.events = EnvEventManager({}, self)
        self.final_obs = self._allocate_obs()
        self.own = {**self._allocate_obs(), **{name: self._flags() for name in _ENDS}, f.REWARD: self._numbers()}
        self.rows: list[dict[str, torch.Tensor]] = []
        self.lent: TensorDict | None = None
        self.current_rollout_step = 0

    @abstractmethod
    def advance(self, action: Action) -> None:
        """Applies the action and advances the simulation by one step in all lanes."""

    @abstractmethod
    def write_obs(self, out: Tree, lanes: torch.Tensor | None) -> None:
        """Writes the observations of the lanes of these ids, or of all, into their rows of `out` [N, ...]."""

    @abstractmethod
    def write_reward(self, out: torch.Tensor, action: Action) -> None:
        """Writes the reward of the step into `out` [N]; `last_action` still is the previous action."""

    @abstractmethod
    def compute_task_state(self) -> TaskState:
        """Returns which lanes succeeded or failed; either terminates the episode."""

    @abstractmethod
    def start_episodes(self, lanes: torch.Tensor) -> None:
        """Resets the lanes of these ids."""

    def check_truncated(self) -> torch.Tensor:
        """Returns which lanes are truncated for another reason than the time limit, [N] bool."""
        return torch.zeros_like(self.elapsed_steps, dtype=torch.bool)

    def set_rollout_buffer(self, rollout: TensorDict) -> None:
        """Sets the rollout [N, T+1] for the next T steps; later steps go to the environment's own memory."""
        if rollout is not self.lent:
            self._require_fit(rollout)
            fields = {name: rollout[tuple(name.split("."))] for name in self.own}
            num_slots = rollout.batch_size[1]
            self.rows = [{name: field[:, t] for name, field in fields.items()} for t in range(num_slots)]
            self.lent = rollout
        self.current_rollout_step = 0

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        mask = torch.ones(self.num_lanes, dtype=torch.bool) if lanes is None else torch.as_tensor(lanes)
        out = build(self.spec.obs, self.own, f.OBS)
        # Rows of lanes that go on must be right too: this may be memory that no step has written.
        self.write_obs(out, None)
        self._start(mask.nonzero().squeeze(1).to(self.device), out)
        return out

    def step(self, action: Action) -> StepResult:
        now, following = self._memory_of_step()
        obs = build(self.spec.obs, following, f.OBS)
        self.advance(action)
        self.events.apply("interval")
        self.write_obs(obs, None)
        task = self.compute_task_state()
        self.write_reward(now[f.REWARD], action)
        self.elapsed_steps += 1
        torch.logical_or(task.success, task.fail, out=now[f.TERMINATED])
        torch.logical_or(self.check_truncated(), self._is_late(), out=now[f.TRUNCATED])
        torch.logical_or(now[f.TERMINATED], now[f.TRUNCATED], out=now[f.DONE])
        for name, chosen in flatten(self.spec.action, action, f.ACTION).items():
            self.last_action[name].copy_(chosen)
        self.current_rollout_step += 1
        # Taken before lanes start anew: what is said about a step must not change with the next episode.
        info = self._info(task)
        ended = now[f.DONE].nonzero().squeeze(1)
        if len(ended):
            for name, rows in self.final_obs.items():
                rows[ended] = following[name][ended]
            self._start(ended, obs)
        final_obs = build(self.spec.obs, self.final_obs, f.OBS)
        return StepResult(obs, now[f.REWARD], now[f.TERMINATED], now[f.TRUNCATED], final_obs, info=info)

    def close(self) -> None:
        self.events.close()

    def _start(self, lanes: torch.Tensor, out: Tree) -> None:
        self.start_episodes(lanes)
        self.elapsed_steps[lanes] = 0
        for rows in self.last_action.values():
            rows[lanes] = 0
        self.events.apply("reset", lanes.cpu().numpy())
        self.write_obs(out, lanes)

    def _is_late(self) -> torch.Tensor:
        limit = self.max_episode_steps
        return torch.zeros_like(self.elapsed_steps, dtype=torch.bool) if limit is None else self.elapsed_steps >= limit

    def _info(self, task: TaskState) -> Info:
        return {
            "success": task.success.clone(),
            "fail": task.fail.clone(),
            "elapsed_steps": self.elapsed_steps.clone(),
            "metrics": {name: value.clone() for name, value in task.metrics.items()},
            "rewards": {name: value.clone() for name, value in self.reward_terms.items()},
        }

    def _memory_of_step(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Returns the memory for this step's reward and ends, and for the next observation."""
        t = self.current_rollout_step
        if t + 1 < len(self.rows):
            return self.rows[t], self.rows[t + 1]
        return self.own, self.own

    def _require_fit(self, rollout: TensorDict) -> None:
        if rollout.batch_size[0] != self.num_lanes:
            raise SpecMismatch(f"the rollout has {rollout.batch_size[0]} lanes, the environment {self.num_lanes}")
        for name, mine in self.own.items():
            theirs = rollout.get(tuple(name.split(".")), None)
            if theirs is None or theirs.shape[2:] != mine.shape[1:] or theirs.dtype != mine.dtype:
                found = "nothing" if theirs is None else f"{theirs.dtype} {tuple(theirs.shape)}"
                raise SpecMismatch(f"the rollout has {found} for {name!r}; the environment writes {mine.dtype}")

    def _allocate_obs(self) -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros((self.num_lanes, *leaf.shape), dtype=TORCH_DTYPES[leaf.dtype], device=self.device)
            for name, leaf in leaves(self.spec.obs, f.OBS).items()
        }

    def _flags(self) -> torch.Tensor:
        return torch.zeros(self.num_lanes, dtype=torch.bool, device=self.device)

    def _numbers(self) -> torch.Tensor:
        return torch.zeros(self.num_lanes, device=self.device)
