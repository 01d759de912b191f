"""Twin delayed DDPG (Fujimoto et al. 2018) as a user writes it, for one array of observations and one of actions.

Run it in this folder: quintain train td3:MyTD3 Pendulum-v1 total_timesteps=20k
"""

import torch
from torch import nn

from quintain.algorithms import Loss, OffPolicy, OffPolicySettings, next_of, register, soft_update_, target_network
from quintain.policies import NoiseSpec, mlp


class MyTD3Settings(OffPolicySettings):
    """Settings of twin delayed DDPG."""

    tau: float = 0.005
    """Coefficient of Polyak averaging of the target networks at each policy update."""

    policy_delay: int = 2
    """Critic updates per policy update."""

    target_noise: float = 0.2
    """Standard deviation of the noise on target actions (target policy smoothing)."""

    noise_clip: float = 0.5
    """Clip range of that noise."""


class TwinQ(nn.Module):
    """Two critics, each a network of its own."""

    def __init__(self, num_inputs, hidden_sizes, rng):
        super().__init__()
        self.twins = nn.ModuleList(
            mlp(num_inputs, hidden_sizes, 1, activation="relu", output_gain=None, generator=rng.torch_generator(name))
            for name in ("first", "second")
        )

    def forward(self, obs, action):
        seen = torch.cat((obs, action), dim=1)
        return torch.stack([twin(seen).squeeze(1) for twin in self.twins])


DEFAULTS = {"policy": {"type": "deterministic_actor"}, "rollout": {"type": "replay"}}


@register("my_td3", MyTD3Settings, defaults=DEFAULTS)
class MyTD3(OffPolicy):
    """A deterministic policy that follows the gradient of the first of two critics, all learned from replay."""

    def __init__(self, settings, policy, signals=None, rng=None):
        super().__init__(settings, policy, signals, rng)
        num_inputs = policy.spec.obs.size + policy.spec.action.size
        self.critics = TwinQ(num_inputs, policy.settings.hidden_sizes, self.rng)
        self.target_critics, self.target_actor = target_network(self.critics), target_network(policy.network)

    def trained_parameters(self):
        yield from self.policy.named_parameters()
        yield from self.critics.named_parameters(prefix="critics")

    def make_optimizers(self):
        return {"critics": self.make_optimizer("critics.*"), "actor": self.make_optimizer("network.*")}

    @property
    def minibatch_noise(self):
        return NoiseSpec(), self.policy.noise  # for the target actions

    def loss(self, minibatch, fraction):
        settings, after = self.settings, next_of(minibatch)
        with torch.no_grad():
            noise = (settings.target_noise * after["noise"]).clamp(-settings.noise_clip, settings.noise_clip)
            action = (torch.tanh(self.target_actor(after)) + noise).clamp(-1.0, 1.0)
            next_value = self.target_critics(after["obs"], action).amin(dim=0)
            target = minibatch["reward"] + minibatch["discount"] * next_value
        loss = (self.critics(minibatch["obs"], minibatch["action"]) - target).square().mean(dim=1).sum()
        return Loss(loss, {"train/critic_loss": loss.detach()})

    def policy_loss(self, minibatch, fraction):
        loss = -self.critics(minibatch["obs"], self.policy.actions(minibatch))[0].mean()
        return Loss(loss, {"train/policy_loss": loss.detach()})

    def gradient_step(self, minibatch, fraction, learning_rate, micro_batch_size=None):
        parts = self.step_on("critics", self.loss, minibatch, fraction, learning_rate)
        if self.step_number % self.settings.policy_delay == 0:
            parts |= self.step_on("actor", self.policy_loss, minibatch, fraction, learning_rate)
            soft_update_(self.target_critics, self.critics, self.settings.tau)
            soft_update_(self.target_actor, self.policy.network, self.settings.tau)
        return parts
