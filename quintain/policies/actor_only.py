"""A policy without a critic, for algorithms that compare returns with each other (GRPO)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot, values_shape
from quintain.data.spec import BehaviorSpec
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorOnlySettings


class ActorOnly(ActorCritic):
    """An actor without a critic; `value` is always 0."""

    fits_kernels = True
    has_values = False

    def __init__(self, settings: ActorOnlySettings, spec: BehaviorSpec, rng: Rng | None = None) -> None:
        if settings.critic_obs is not None:
            raise SettingsError("policy.critic_obs is for a critic, which actor_only does not have. Leave it out")
        super().__init__(settings.model_copy(update={"critic_obs": settings.actor_obs}), spec, rng)
        # What it was made from, so that it can be made again.
        self.settings = settings
        # Nothing is to be learned, saved or averaged for a network that is never asked.
        del self.critic

    def act(self, slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        if slot.arrays and self.accelerator is not None:
            self.accelerator.act(slot, state, deterministic=deterministic)
            return
        self.choose(slot, state, deterministic=deterministic)
        slot.value.zero_()

    def value_of(self, obs: Any, state: torch.Tensor | None = None, first: torch.Tensor | None = None) -> torch.Tensor:
        return torch.zeros((len(self.obs_rows(obs)), *values_shape(self.num_values)), device=self.device)

    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        judged, _ = self.judge_actions(batch)
        num_rows = len(judged[f.LOG_PROB])
        return {**judged, f.VALUE: judged[f.LOG_PROB].new_zeros((num_rows, *values_shape(self.num_values)))}
