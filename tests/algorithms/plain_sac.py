"""Soft actor-critic written down once more, slowly: one row at a time, separate critics, torch.distributions.

It knows nothing of the package but where a trainer keeps its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

Row = dict[str, torch.Tensor]


def actor_of(policy: Any) -> nn.Sequential:
    """Returns a copy of the actor as a plain network."""
    layers: list[nn.Module] = []
    for layer in policy.actor:
        if isinstance(layer, nn.Linear):
            plain = nn.Linear(layer.in_features, layer.out_features)
            plain.weight.data, plain.bias.data = layer.weight.detach().clone(), layer.bias.detach().clone()
            layers.append(plain)
        else:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def critic_of(critics: Any, which: int) -> nn.Sequential:
    """Returns a copy of one of the two critics as a plain network."""
    layers: list[nn.Module] = []
    for weight, bias in zip(critics.weights, critics.biases, strict=True):
        plain = nn.Linear(weight.shape[1], weight.shape[2])
        plain.weight.data, plain.bias.data = weight[which].detach().T.clone(), bias[which, 0].detach().clone()
        layers += [plain, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PlainSAC:
    """Holds copies of all networks, and says what the losses of a minibatch are."""

    def __init__(self, algorithm: Any, coefs: dict[str, float]) -> None:
        self.actor = actor_of(algorithm.policy)
        self.critics = [critic_of(algorithm.critics, i) for i in range(2)]
        self.targets = [critic_of(algorithm.targets, i) for i in range(2)]
        self.coefs = coefs

    def numbers(self, obs: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draws a squashed Gaussian action and its log-density with torch.distributions."""
        mean, log_std = self.actor(obs).chunk(2)
        # cache_size keeps the drawn number: the inverse of tanh would lose digits.
        squashed = TransformedDistribution(
            Independent(Normal(mean, log_std.clamp(-5.0, 2.0).exp()), 1), [TanhTransform(cache_size=1)]
        )
        raw = mean + log_std.clamp(-5.0, 2.0).exp() * noise
        action = squashed.transforms[0](raw)
        return action, squashed.log_prob(action)

    def losses_of_numbers(self, row: Row) -> dict[str, torch.Tensor]:
        alpha = self.coefs["numbers"]
        with torch.no_grad():
            after, log_prob = self.numbers(row["next_obs"], row["next_noise"])
            following = min(float(t(torch.cat((row["next_obs"], after)))) for t in self.targets) - alpha * log_prob
            target = row["reward"] + row["discount"] * following
        taken = torch.tanh(row["action"])
        said = [critic(torch.cat((row["obs"], taken))).squeeze() for critic in self.critics]
        action, log_prob = self.numbers(row["obs"], row["noise"])
        now = torch.stack([critic(torch.cat((row["obs"], action))).squeeze() for critic in self.critics])
        return {
            "critic": 0.5 * sum((value - target) ** 2 for value in said),
            "policy": alpha * log_prob - now.min(),
            "entropy": -log_prob,
        }

    def losses_of_choices(self, row: Row) -> dict[str, torch.Tensor]:
        alpha = self.coefs["choices"]
        with torch.no_grad():
            after = Categorical(logits=self.masked(self.actor(row["next_obs"]), row.get("next_action_mask")))
            following = torch.zeros(())
            for choice, probability in enumerate(after.probs):
                worst = min(float(target(row["next_obs"])[choice]) for target in self.targets)
                if probability > 0:
                    following = following + probability * (worst - alpha * math.log(probability))
            target = row["reward"] + row["discount"] * following
        said = [critic(row["obs"])[int(row["action"])] for critic in self.critics]
        now = Categorical(logits=self.masked(self.actor(row["obs"]), row.get("action_mask")))
        worst_now = torch.minimum(*(critic(row["obs"]).detach() for critic in self.critics))
        expected = sum(
            p * (worst_now[i] - alpha * torch.log(p)) for i, p in enumerate(now.probs) if float(p.detach()) > 0
        )
        return {
            "critic": 0.5 * sum((value - target) ** 2 for value in said),
            "policy": -expected,
            "entropy": -sum(p * torch.log(p) for p in now.probs if float(p.detach()) > 0),
        }

    @staticmethod
    def masked(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return logits if mask is None else logits.masked_fill(~mask, float("-inf"))

    def means(self, rows: list[Row], losses: Callable[[Row], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        found = [losses(row) for row in rows]
        return {name: torch.stack([one[name] for one in found]).mean() for name in found[0]}
