"""Objectives under nip's names: loss modules for a team, with a loss of each agent over its active steps."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import torch
from tensordict import TensorDict, TensorDictBase
from torch import nn
from torch.nn import functional

from quintain.algorithms.optimizer import add_gradients
from quintain.algorithms.returns import generalized_advantages
from quintain.errors import SettingsError
from quintain.experiments import operators as keys

if TYPE_CHECKING:
    from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule

    from quintain.policies.team import TeamPolicy

Key: TypeAlias = str | tuple[str, ...]
ERRORS = {"l1": functional.l1_loss, "l2": functional.mse_loss, "smooth_l1": functional.smooth_l1_loss}


class ValueEstimators(Enum):
    """Estimators of advantages; TorchRL's enum of this name is taken too."""

    GAE = "gae"


class GAE(nn.Module):
    """Generalized advantage estimation on a joint TensorDict [N, T]: adds advantages and value targets of agents."""

    def __init__(self, gamma: float, lmbda: float) -> None:
        super().__init__()
        self.gamma, self.lmbda = gamma, lmbda

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase, **_: object) -> TensorDictBase:
        def lanes(key: Key) -> torch.Tensor:
            # [N, T, A, 1] to [T, N * A]
            found: torch.Tensor = tensordict.get(key).squeeze(-1).transpose(0, 1).flatten(1)
            return found

        value, following = lanes(keys.VALUE), lanes(keys.NEXT_VALUE)
        done, terminated = lanes(keys.NEXT_DONE), lanes(keys.NEXT_TERMINATED)
        values = torch.cat((value, following[-1:]))
        found = generalized_advantages(
            lanes(keys.NEXT_REWARD).numpy(),
            values.numpy(),
            following.numpy(),
            terminated.numpy(),
            done.numpy(),
            torch.ones_like(done).numpy(),
            gamma=self.gamma,
            gae_lambda=self.lmbda,
        )
        shape = tensordict.get(keys.VALUE).transpose(0, 1).shape
        advantage = torch.from_numpy(found).view(shape).transpose(0, 1)
        tensordict.set(keys.ADVANTAGE, advantage)
        tensordict.set(keys.VALUE_TARGET, advantage + tensordict.get(keys.VALUE))
        return tensordict


class Objective(nn.Module):
    """The base of loss modules: `forward` maps a TensorDict of rows to one with entries `loss_*`.

    Their sum is minimized, and all other entries are metrics. State belongs in buffers and parameters, which are saved.
    """

    default_keys: Mapping[str, Key] = {
        "action": keys.ACTION,
        "sample_log_prob": keys.LOG_PROB,
        "value": keys.VALUE,
        "advantage": keys.ADVANTAGE,
        "value_target": keys.VALUE_TARGET,
        "reward": keys.NEXT_REWARD,
        "done": keys.NEXT_DONE,
        "terminated": keys.NEXT_TERMINATED,
        "active": keys.ACTIVE,
    }

    def __init__(self) -> None:
        super().__init__()
        self.tensor_keys = dict(self.default_keys)
        self.value_estimator: GAE | None = None

    def set_keys(self, **named: Key | list[Key]) -> None:
        """Says under which key each entry is; several action keys are given as a list."""
        for name, key in named.items():
            if name not in self.tensor_keys:
                raise SettingsError(
                    f"set_keys: {type(self).__name__} reads no {name}; expected one of {', '.join(self.tensor_keys)}",
                    code="E0273",
                )
            if isinstance(key, list) and len(key) != 1:
                raise SettingsError(f"set_keys: found the {name} keys {key}; a team has one", code="E0273")
            self.tensor_keys[name] = key[0] if isinstance(key, list) else key

    def make_value_estimator(self, value_type: Enum | str = "gae", *, gamma: float, lmbda: float) -> None:
        """Makes `value_estimator`; GAE is the only kind, from this module's enum or from TorchRL's."""
        name = value_type.name if isinstance(value_type, Enum) else str(value_type)
        if name.lower() != "gae":
            raise SettingsError(f"make_value_estimator: found {name}, expected GAE", code="E0273")
        self.value_estimator = GAE(gamma, lmbda)

    def backward(self, loss_vals: TensorDictBase) -> None:
        """Adds the gradient of the sum of all `loss_*` entries to the parameters'; override it for other gradients."""
        losses = [loss_vals.get(name).sum() for name in list(loss_vals.keys()) if name.startswith("loss_")]
        add_gradients(torch.stack(losses).sum())

    def entry(self, tensordict: TensorDictBase, name: str) -> torch.Tensor:
        """Returns an entry without the last dimension of size 1: [B, A]."""
        found: torch.Tensor = tensordict.get(self.tensor_keys[name])
        return found.squeeze(-1) if found.ndim > 2 and found.shape[-1] == 1 else found

    def weight(self, tensordict: TensorDictBase) -> torch.Tensor:
        """Returns 1 / number of active rows of the agent where it is active, [B, A], so that sums are means."""
        active = self.entry(tensordict, "active").float()
        return active / active.sum(0).clamp(min=1.0)


class PPOLossImproved(Objective):
    """The base of PPO's objectives: one for each agent, summed, with critics and an entropy bonus."""

    def __init__(
        self,
        actor: ProbabilisticTensorDictSequential,
        critic: TensorDictModule | None = None,
        *,
        entropy_coef: float = 0.001,
        critic_coef: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
    ) -> None:
        super().__init__()
        self.actor_network, self.critic_network = actor, critic
        self.entropy_coef, self.critic_coef, self.loss_critic_type = entropy_coef, critic_coef, loss_critic_type
        self.normalize_advantage = normalize_advantage

    def objective(self, ratio: torch.Tensor, advantage: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Returns the loss of each agent [A] of probability ratios and advantages [B, A]."""
        return -(weight * ratio * advantage).sum(0)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        dist = self.actor_network.get_dist(tensordict)
        log_ratio = dist.log_prob(tensordict.get(self.tensor_keys["action"])) - self.entry(
            tensordict, "sample_log_prob"
        )
        ratio, weight = log_ratio.exp(), self.weight(tensordict)
        advantage = self.entry(tensordict, "advantage")
        if self.normalize_advantage:
            mean = (weight * advantage).sum(0)
            spread = (weight * (advantage - mean).square()).sum(0).sqrt().clamp(min=1e-6)
            advantage = (advantage - mean) / spread
        entropy = (weight * dist.entropy()).sum(0)
        self.kl = (weight * (ratio - 1.0 - log_ratio)).sum(0)
        out = {
            "loss_objective": self.objective(ratio, advantage, weight).sum(),
            "loss_entropy": -self.entropy_coef * entropy.sum(),
            "entropy": entropy.detach().sum(),
            "kl_divergence": self.kl.detach().mean(),
        }
        if self.critic_network is not None:
            value = self.entry(self.critic_network(tensordict.copy()), "value")
            target = self.entry(tensordict, "value_target")
            error = ERRORS[self.loss_critic_type](value, target, reduction="none").mean(0).sum()
            out |= {"loss_critic": self.critic_coef * error, "loss_critic_unscaled": error.detach()}
        return TensorDict(out, batch_size=[])


class ClipPPOLossImproved(PPOLossImproved):
    """PPO with clipped ratios."""

    def __init__(
        self,
        actor: ProbabilisticTensorDictSequential,
        critic: TensorDictModule | None = None,
        *,
        clip_epsilon: float = 0.2,
        entropy_coef: float = 0.001,
        critic_coef: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
    ) -> None:
        super().__init__(
            actor,
            critic,
            entropy_coef=entropy_coef,
            critic_coef=critic_coef,
            loss_critic_type=loss_critic_type,
            normalize_advantage=normalize_advantage,
        )
        self.clip_epsilon = clip_epsilon

    def objective(self, ratio: torch.Tensor, advantage: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        clipped = ratio.clamp(1.0 - self.clip_epsilon, 1.0 + self.clip_epsilon)
        return -(weight * torch.min(ratio * advantage, clipped * advantage)).sum(0)


class KLPENPPOLossImproved(PPOLossImproved):
    """PPO with a KL penalty whose coefficient, one for each agent, is adapted to a target after each minibatch."""

    beta: torch.Tensor

    def __init__(
        self,
        actor: ProbabilisticTensorDictSequential,
        critic: TensorDictModule | None = None,
        *,
        num_agents: int,
        dtarg: float = 0.01,
        beta: float = 1.0,
        increment: float = 2.0,
        decrement: float = 0.5,
        entropy_coef: float = 0.001,
        critic_coef: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
    ) -> None:
        super().__init__(
            actor,
            critic,
            entropy_coef=entropy_coef,
            critic_coef=critic_coef,
            loss_critic_type=loss_critic_type,
            normalize_advantage=normalize_advantage,
        )
        self.dtarg, self.increment, self.decrement = dtarg, increment, decrement
        self.register_buffer("beta", torch.full((num_agents,), beta))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        out = super().forward(tensordict)
        out.set("loss_kl", (self.beta.clone() * self.kl).sum())
        with torch.no_grad():
            self.beta[self.kl > 1.5 * self.dtarg] *= self.increment
            self.beta[self.kl < self.dtarg / 1.5] *= self.decrement
        return out


class ReinforceLossImproved(Objective):
    """REINFORCE: log-probabilities weighted by advantages, and critics if there are any."""

    def __init__(
        self,
        actor: ProbabilisticTensorDictSequential,
        critic: TensorDictModule | None = None,
        *,
        critic_coef: float = 1.0,
        loss_critic_type: str = "smooth_l1",
    ) -> None:
        super().__init__()
        self.actor_network, self.critic_network = actor, critic
        self.critic_coef, self.loss_critic_type = critic_coef, loss_critic_type

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        log_prob = self.actor_network.get_dist(tensordict).log_prob(tensordict.get(self.tensor_keys["action"]))
        gain = self.weight(tensordict) * log_prob * self.entry(tensordict, "advantage")
        out = {"loss_actor": -gain.sum()}
        if self.critic_network is not None:
            value = self.entry(self.critic_network(tensordict.copy()), "value")
            target = self.entry(tensordict, "value_target")
            error = ERRORS[self.loss_critic_type](value, target, reduction="none").mean(0).sum()
            out["loss_critic"] = self.critic_coef * error
        return TensorDict(out, batch_size=[])


def clipped_ppo(policy: TeamPolicy) -> tuple[ClipPPOLossImproved, None]:
    """Returns PPO's objective for a policy, without an estimator: the core's GAE is used."""
    return ClipPPOLossImproved(keys.policy_operator(policy), keys.value_operator(policy)), None
