"""Parts of a trainer by hooks: the state of its hooks' buffers, and its place in a run's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from quintain.behaviors.hook_settings import HookAlgorithmSettings, HookTrainerSettings
from quintain.core.state import as_tensor
from quintain.errors import NonFiniteError, SettingsError
from quintain.trainers.base import Trainer as CoreTrainer
from quintain.trainers.guard import UpdateGuard
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.behaviors.rl_trainer import RLTrainer
    from quintain.typing import State


class ByHooks(CoreTrainer):
    """The core's loop over learners by hooks; its settings name the class of each."""

    settings_class = HookTrainerSettings


class HookAlgorithm:
    """Represents a trainer's `_update_policy` in the settings of a run; only its class can make it."""

    settings_class = HookAlgorithmSettings

    def __init__(self, settings: HookAlgorithmSettings, *others: object) -> None:
        raise SettingsError(
            "this behaviour is trained by the hooks of a class; train it through a TrainerController that has the class"
        )


class StrictGuard(UpdateGuard):
    """Ends the run if an update by hooks is not finite: only the hooks could roll back."""

    def failed(self, trainer: object, fault: NonFiniteError) -> NoReturn:
        raise fault


class Hooks:
    """Counts the data of a trainer's hooks; its state includes their buffers and optimizer."""

    def __init__(self, trainer: RLTrainer) -> None:
        self.trainer = trainer
        self.step = 0
        self.episodes = 0
        self.has_updated = False
        self.num_gathered = 0
        """Steps since the last update, until there were enough for the next."""
        self.is_enough = False
        self.num_needed = 0
        """Steps that the last update needed."""

    def count(self, num_steps: int, num_episodes: int) -> None:
        """Counts processed steps, and completed episodes."""
        self.step += num_steps
        self.episodes += num_episodes
        for policy in self.trainer.policies.values():
            policy.increment_step(num_steps)

    def begin_update(self) -> None:
        """Marks the data of an update: all that was processed until now."""
        self.num_needed, self.num_gathered, self.is_enough = self.num_gathered, 0, False
        self.has_updated = False

    def state_dict(self) -> State:
        trainer = self.trainer
        return {
            "step": self.step,
            "episodes": self.episodes,
            "has_updated": self.has_updated,
            "gathered": [self.num_gathered, int(self.is_enough), self.num_needed],
            "returns": list(trainer.cumulative_returns_since_policy_update),
            "reward_buffer": list(trainer.reward_buffer),
            "collected": {key: dict(value) for key, value in trainer.collected_rewards.items()},
            "lengths": dict(trainer.collected_lengths),
            "buffers": {name: each.state_dict() for name, each in trainer.buffers.items()},
            "optimizer": _with_text_keys(trainer.optimizer.state_dict()) if self._keeps_optimizer else {},
        }

    def load_state_dict(self, state: State) -> None:
        trainer = self.trainer
        self.step, self.episodes, self.has_updated = state["step"], state["episodes"], state["has_updated"]
        self.num_gathered, is_enough, self.num_needed = state["gathered"]
        self.is_enough = bool(is_enough)
        trainer.cumulative_returns_since_policy_update = list(state["returns"])
        trainer.reward_buffer.clear()
        trainer.reward_buffer.extend(state["reward_buffer"])
        trainer.collected_rewards = {key: dict(value) for key, value in state["collected"].items()}
        trainer.collected_lengths = dict(state["lengths"])
        for name, each in trainer.buffers.items():
            each.load_state_dict(state["buffers"][name])
        if self._keeps_optimizer:
            trainer.optimizer.load_state_dict(_with_number_keys(state["optimizer"]))
        for policy in trainer.policies.values():
            policy.set_step(self.step)

    @property
    def _keeps_optimizer(self) -> bool:
        return isinstance(self.trainer.optimizer, Stateful)


def _with_text_keys(tree: Any) -> Any:
    """Converts the integer keys of torch's optimizer states to text, as files require."""
    if isinstance(tree, Mapping):
        return {f"#{key}" if isinstance(key, int) else key: _with_text_keys(value) for key, value in tree.items()}
    return [_with_text_keys(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _with_number_keys(tree: Any, *, is_torch: bool = False) -> Any:
    """Reverses `_with_text_keys`, with tensors for the arrays of torch's optimizers, as they require.

    Such an optimizer is recognised by its two entries, anywhere in a user's class.
    """
    if isinstance(tree, Mapping):
        is_torch = is_torch or set(tree) == {"state", "param_groups"}
        return {_number(key): _with_number_keys(value, is_torch=is_torch) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_with_number_keys(value, is_torch=is_torch) for value in tree]
    return as_tensor(tree) if is_torch and isinstance(tree, np.ndarray) else tree


def _number(key: str) -> str | int:
    return int(key[1:]) if key.startswith("#") else key
