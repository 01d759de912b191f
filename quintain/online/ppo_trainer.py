"""`PPOTrainer` and `PPOBCTrainer`: MineStudio's trainers by name, run by the core's loop and algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from quintain.errors import SettingsError
from quintain.online.base_trainer import BaseTrainer

if TYPE_CHECKING:
    from quintain.policies.mine_policy import MinePolicy
    from quintain.typing import Keyword


class OnlinePPOTrainer(BaseTrainer):
    """PPO with MineStudio's objective (`online_ppo`). A subclass with a `train` of its own has that loop."""

    has_own_loop: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Keyword) -> None:
        super().__init_subclass__(**kwargs)
        cls.has_own_loop = cls.train is not OnlinePPOTrainer.train
        changed = ("setup_model_and_optimizer", "train_iteration", "ppo_update", "_train_func")
        if not cls.has_own_loop and (idle := [name for name in changed if name in vars(cls)]):
            raise TypeError(
                f"{cls.__name__} overrides {', '.join(idle)}, which the core's loop does not call; write train, too"
            )

    @property
    def fragments_per_iteration(self) -> int:
        """Fragments that an iteration learns from."""
        return self.config.fragments_per_iteration

    def setup_model_and_optimizer(
        self, policy_generator: Callable[[], MinePolicy] | None = None
    ) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Returns a policy and AdamW, for a subclass with a loop of its own."""
        model, config = (policy_generator or self.policy_generator)(), self.config
        rate, decay = config.learning_rate, config.weight_decay
        return model, torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, eps=config.adam_eps)

    def train(self) -> None:
        """Is the core's loop, which `fit` runs."""
        raise SettingsError("PPOTrainer trains by fit(); a subclass may write a train() of its own", code="E0268")


PPOTrainer = OnlinePPOTrainer
"""As MineStudio calls it."""


class PPOBCTrainer(OnlinePPOTrainer):
    """PPO beside a behaviour-cloning loss on demonstrations (`mine_data`), with the weight `bc_coef`."""
