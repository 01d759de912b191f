"""Behavioural cloning: quintain train ppo CartPole-v1 "auxiliary_losses.bc={type: bc:Cloning, path: FILE.npz}"."""

import numpy as np
import torch

from quintain.algorithms import AuxiliaryLoss, AuxiliaryLossSettings, Loss, register_auxiliary_loss


class CloningSettings(AuxiliaryLossSettings):
    """Configures behavioural cloning."""

    path: str
    """File (.npz) with `observations` [M, ...] and `actions` [M, ...] of a demonstrator."""

    batch_size: int = 64
    """Demonstrated steps in each gradient step."""


@register_auxiliary_loss("cloning", CloningSettings)
class Cloning(AuxiliaryLoss):
    """Minimises -log pi(a|o) of demonstrated actions."""

    not_state = frozenset({"demonstrations"})

    def __init__(self, settings, policy, rng):
        super().__init__(settings, policy, rng)
        with np.load(settings.path) as file:
            self.demonstrations = {name: torch.from_numpy(file[f"{name}s"]) for name in ("observation", "action")}
        self.num_draws = 0

    def loss(self, minibatch, fraction):
        self.num_draws += 1
        obs, action = self.demonstrations.values()
        rows = self.rng.generator("rows", self.num_draws).integers(len(obs), size=self.settings.batch_size)
        judged = self.policy.evaluate_actions({"obs": obs[rows], "action": action[rows]})
        return Loss(-judged["sample_log_prob"].mean(), {})
