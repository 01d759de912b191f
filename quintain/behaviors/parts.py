"""What a trainer of ML-Agents' kind is made of before it is connected, and what of it a checkpoint must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from quintain.core.state import as_tensor
from quintain.errors import RunDirectoryError
from quintain.services.reporting.writers import RunSummary
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.behaviors.trainer import Trainer
    from quintain.behaviors.trajectory import Trajectory
    from quintain.typing import Metrics, State


class Unconnected:
    """Stands for source and store of a trainer that no environment was given to: only its queues bring anything."""

    exactness = "exact"
    env: Any = None

    def fill(self, store: Any, should_stop: Callable[[], bool]) -> bool:
        return False

    def publish(self, version: int, policy: Any) -> None: ...
    def set_env_parameters(self, values: Any) -> None: ...
    def require_env_parameters(self, names: Any) -> None: ...
    def end_episode(self) -> None: ...
    def listen(self, on_step: Any) -> None: ...
    def heard_by(self, on_step: Any) -> AbstractContextManager[None]:
        return nullcontext()

    supervisors: Sequence[Any] = ()

    def trigger(self, name: str, lanes: Any) -> None: ...
    def idle_env_events(self) -> list[str]:
        return []

    def pause(self, should_stop: Callable[[], bool]) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    def spend(self) -> None: ...
    def release(self) -> None: ...
    def ready(self) -> bool:
        return False

    def drain_seconds(self) -> dict[str, float]:
        return {}

    def drain_metrics(self) -> Metrics:
        return {}

    def begin_anew(self, states: Sequence[State]) -> None: ...
    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None: ...


class UnconnectedSession:
    """Surrounds a trainer that belongs to no run."""

    runs_dir = Path("runs")
    keeps_checkpoints = False

    def running(self, trainer: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def after_stage(self, trainer: Any) -> None: ...
    def after_cycle(self, trainer: Any) -> None: ...

    def save(self, trainer: Any) -> Path:
        raise RunDirectoryError(
            "this trainer belongs to no run, so there is nowhere to save it; use a TrainerController"
        )

    def take_up(self, trainer: Any, path: Path) -> None:
        self.save(trainer)

    def folder(self, name: str) -> Path:
        return self.save(None)

    def keep_evidence(self, trainer: Any, tensors: Mapping[str, Any]) -> Path | None:
        return None

    def rollback(self, trainer: Any) -> bool:
        return False

    def warn(self, trainer: Any, code: str, text: str) -> None: ...

    def tell(self, text: str) -> None: ...

    def summary(self, trainer: Any) -> RunSummary:
        return RunSummary("finished", trainer.stats.total_seconds, trainer.progress.env_steps)


class Hooks:
    """What the hooks of a trainer have gathered: steps, episodes, the buffer, and the state of their optimizer."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.step = 0
        self.episodes = 0
        self.learned_step = 0
        """Steps that the newest update, and all before it, learned from."""
        self.learned_episodes = 0
        self.has_updated = False

    def begin_update(self) -> None:
        """Takes note that an update learns from what was counted until now."""
        self.learned_step, self.learned_episodes = self.step, self.episodes

    def count(self, trajectory: Trajectory) -> None:
        """Counts the steps of a trajectory."""
        self.step += len(trajectory)
        self.episodes += trajectory.done_reached
        for policy in self.trainer.policies.values():
            policy.increment_step(len(trajectory))

    def state_dict(self) -> State:
        trainer: Any = self.trainer
        return {
            "step": self.step,
            "episodes": self.episodes,
            "learned": [self.learned_step, self.learned_episodes],
            "has_updated": self.has_updated,
            "updating": trainer.updating.state_dict(),
            "returns": list(trainer.cumulative_returns_since_policy_update),
            "reward_buffer": list(trainer.reward_buffer),
            "collected": {key: dict(value) for key, value in trainer.collected_rewards.items()},
            "lengths": dict(trainer.collected_lengths),
            "update_buffer": trainer.update_buffer.state_dict(),
            "optimizer": _with_text_keys(trainer.optimizer.state_dict()) if self._keeps_optimizer else {},
        }

    def load_state_dict(self, state: State) -> None:
        trainer: Any = self.trainer
        self.step, self.episodes, self.has_updated = state["step"], state["episodes"], state["has_updated"]
        self.learned_step, self.learned_episodes = state["learned"]
        trainer.updating.load_state_dict(state["updating"])
        trainer.cumulative_returns_since_policy_update = list(state["returns"])
        trainer.reward_buffer.clear()
        trainer.reward_buffer.extend(state["reward_buffer"])
        trainer.collected_rewards = {key: dict(value) for key, value in state["collected"].items()}
        trainer.collected_lengths = dict(state["lengths"])
        trainer.update_buffer.load_state_dict(state["update_buffer"])
        if self._keeps_optimizer:
            trainer.optimizer.load_state_dict(_with_number_keys(state["optimizer"]))
        for policy in trainer.policies.values():
            policy.set_step(self.step)

    @property
    def _keeps_optimizer(self) -> bool:
        return isinstance(getattr(self.trainer, "optimizer", None), Stateful)


def _with_text_keys(tree: Any) -> Any:
    """Writes the numbers that torch's optimizers use as keys as text, which is what files have."""
    if isinstance(tree, Mapping):
        return {f"#{key}" if isinstance(key, int) else key: _with_text_keys(value) for key, value in tree.items()}
    return [_with_text_keys(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _with_number_keys(tree: Any, *, is_torch: bool = False) -> Any:
    """Returns what `_with_text_keys` was given, with tensors for the arrays of torch's optimizers: they take no others.

    Such an optimizer is known by its two entries, wherever a class of the user's put it.
    """
    if isinstance(tree, Mapping):
        is_torch = is_torch or set(tree) == {"state", "param_groups"}
        return {_number(key): _with_number_keys(value, is_torch=is_torch) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_number_keys(value, is_torch=is_torch) for value in tree]
    return as_tensor(tree) if is_torch and isinstance(tree, np.ndarray) else tree


def _number(key: str) -> str | int:
    return int(key[1:]) if key.startswith("#") else key
