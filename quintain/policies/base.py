"""What acts and is trained. A policy is one artefact: network, observation normaliser and action transform together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from quintain.data import fields as f
from quintain.data.rollout import Rollout, Slot
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec
from quintain.errors import SpecMismatch
from quintain.policies.distributions import NoiseSpec
from quintain.rng import Rng

if TYPE_CHECKING:
    from tensordict import TensorDict

    from quintain.typing import Array


class Policy(nn.Module, ABC):
    """Chooses actions from observations and random numbers, and judges them again when learning."""

    spec: BehaviorSpec
    noise: NoiseSpec

    @abstractmethod
    def act(self, slot: Slot, *, deterministic: bool = False) -> None:
        """Reads obs and noise of one step and writes action, log-probability and value into the same slot."""

    @abstractmethod
    def value_of(self, obs: torch.Tensor) -> torch.Tensor:
        """Returns the critic's value [B] of observations [B, ...]."""

    @abstractmethod
    def evaluate_actions(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns sample_log_prob, entropy and value of a batch's actions, with gradients."""

    def env_action(self, action: torch.Tensor) -> torch.Tensor:
        """Turns an action as it was sampled into one that the environment takes."""
        return action

    def observe(self, obs: Array) -> None:
        """Learns the observations' scale from a batch [B, ...]; called once per cycle, after the update."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.no_grad()
    def predict(
        self, obs: Any, state: None = None, *, deterministic: bool = True, rng: Rng | None = None
    ) -> tuple[Any, None]:
        """Returns what to do in one observation or in a batch of them, ready for `env.step`, and the next state.

        The state is None because this policy has no memory. With `deterministic=False` the draw is that of `rng`
        (a fresh `Rng(0)` unless given), so a caller who wants different draws passes different streams.
        """
        rows = np.asarray(obs)
        is_single = rows.shape == self.spec.obs.shape
        if not is_single and rows.shape[1:] != self.spec.obs.shape:
            raise SpecMismatch(f"predict() got an observation of shape {rows.shape}; the policy takes {self.spec.obs}")
        rollout = self._one_step(rows[None] if is_single else rows)
        if not deterministic:
            draw_noise(rollout, self.noise, rng or Rng(0), first_step=0)
        self.act(rollout.slots[0], deterministic=deterministic)
        action = self.env_action(rollout.slots[0].action).cpu().numpy()
        if isinstance(self.spec.action, DiscreteSpec):
            action = action + self.spec.action.start
        return (action[0] if is_single else action), None

    def get_action(self, step: TensorDict, *, deterministic: bool = False, rng: Rng | None = None) -> TensorDict:
        """Writes action, sample_log_prob and value into a TensorDict that has `obs`."""
        obs = step[f.OBS].reshape(-1, *self.spec.obs.shape)
        rollout = self._one_step(obs.cpu().numpy())
        with torch.no_grad():
            draw_noise(rollout, self.noise, rng or Rng(0), first_step=0)
            self.act(rollout.slots[0], deterministic=deterministic)
        for name in (f.ACTION, f.LOG_PROB, f.VALUE):
            step[name] = rollout.storage[name][0].reshape(*step.batch_size, *rollout.storage[name].shape[2:])
        return step

    def get_value(self, step: TensorDict) -> TensorDict:
        """Writes value into a TensorDict that has `obs`."""
        obs = step[f.OBS].reshape(-1, *self.spec.obs.shape)
        step[f.VALUE] = self.value_of(obs).reshape(step.batch_size)
        return step

    def _one_step(self, obs: Array) -> Rollout:
        rollout = Rollout(self.spec, num_lanes=len(obs), num_steps=1, noise_size=self.noise.size, device=self.device)
        rollout.write(f.OBS, 0, obs.astype(self.spec.obs.dtype))
        return rollout


def draw_noise(rollout: Rollout, noise: NoiseSpec, rng: Rng, *, first_step: int) -> None:
    """Fills the rollout's noise from (seed, stream, lane, lane step)."""
    out = rollout.arrays[f.NOISE] if rollout.arrays else np.zeros(rollout.storage[f.NOISE].shape, np.float32)
    fill = rng.fill_uniform if noise.kind == "uniform" else rng.fill_normal
    fill(out, "action", first_step)
    if not rollout.arrays:
        rollout.storage[f.NOISE].copy_(torch.from_numpy(out))


def clip_bounds(spec: BehaviorSpec) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Returns the action bounds to clip to, or nothing where actions are choices or unbounded."""
    if isinstance(spec.action, BoxSpec) and spec.action.is_bounded:
        low, high = spec.action.bounds()
        return torch.from_numpy(low), torch.from_numpy(high)
    return None
