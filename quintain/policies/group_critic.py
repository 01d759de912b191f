"""A critic for groups of varying size: every member is an entity, and entities attend to each other.

The same network computes two values: the value of the group, given all members' observations, and the counterfactual
baseline of one agent, given all members' observations and the actions of all but this agent (Cohen et al. 2021, "On the
Use and Misuse of Absorbing States in Multi-agent Reinforcement Learning").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, leaves
from quintain.data.teammates import own_names
from quintain.policies.encoders import Encoder, make_encoder
from quintain.policies.networks import FUNCTIONS, first_layers, linear, mlp
from quintain.policies.normalizer import Fold
from quintain.policies.settings import NetworkSettings

if TYPE_CHECKING:
    from quintain.typing import Array

NUM_HEADS = 4


class GroupCritic(nn.Module):
    """Values of groups by their members' observations, or observations and actions; absent members have no effect."""

    def __init__(
        self,
        spec: BehaviorSpec,
        settings: NetworkSettings,
        embedding_size: int,
        generator: torch.Generator,
        num_values: int = 1,
    ) -> None:
        """Makes the critic; with several value heads each result has one value per reward signal, [B, S]."""
        super().__init__()
        self.own_names = {
            mate: own for mate, own in own_names(spec).items() if mate in leaves(spec.obs, f.TEAMMATE_OBS)
        }
        self.encoder = make_encoder(leaves(spec.obs, f.OBS), settings, generator)
        # Actions have a known scale, and no shape that convolutions would help with.
        plain = settings.model_copy(update={"normalize_obs": False, "image_encoder": "flatten"})
        self.action_encoder = Encoder(leaves(spec.action, f.TEAMMATE_ACTION), plain, generator)
        num_seen, num_done = self.encoder.output_size, self.action_encoder.output_size
        self.embed_seen = linear(num_seen, embedding_size, math.sqrt(2.0), generator)
        self.embed_acted = linear(num_seen + num_done, embedding_size, math.sqrt(2.0), generator)
        self.activate = FUNCTIONS[settings.activation]
        self.attention = Attention(embedding_size, generator)
        self.head = mlp(
            embedding_size + 1,
            settings.hidden_sizes,
            num_values,
            activation=settings.activation,
            output_gain=1.0,
            generator=generator,
        )

    def value(self, seen: Mapping[str, torch.Tensor], is_there: torch.Tensor) -> torch.Tensor:
        """Returns the values [B] of groups; `is_there` [B] says in which groups the agent itself still is a member."""
        own, teammates = self._encode(seen)
        members = torch.cat((self._embed(self.embed_seen, own), self._embed(self.embed_seen, teammates)), dim=1)
        return self._judge(members, torch.cat((is_there[:, None], seen[f.TEAMMATES]), dim=1))

    def value_and_baseline(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the values of groups and the baselines of their agents, [B] each."""
        own, teammates = self._encode(batch)
        own_seen = self._embed(self.embed_seen, own)
        acted = self._embed(self.embed_acted, torch.cat((teammates, self._actions(batch)), dim=2))
        groups = torch.cat((own_seen, self._embed(self.embed_seen, teammates)), dim=1)
        # Both questions at once: twice the rows cost less than two passes.
        members = torch.cat((groups, torch.cat((own_seen, acted), dim=1)))
        present = functional.pad(batch[f.TEAMMATES], (1, 0), value=True)
        value, baseline = self._judge(members, present.repeat(2, 1)).chunk(2)
        return value, baseline

    def observe(self, obs: Mapping[str, Array]) -> list[Fold]:
        """Updates the observation normaliser; folds the change into both layers that read observations."""
        return self.encoder.observe(obs, first_layers(self.embed_seen, self.embed_acted))

    def _encode(self, batch: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the features of agents [B, 1, F] and of their teammates [B, M, F]."""
        own = self.encoder({name: batch[name] for name in self.own_names.values()})
        named = {name: batch[mate] for mate, name in self.own_names.items()}
        return own[:, None], _each(self.encoder, named, batch[f.TEAMMATES])

    def _actions(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the teammates' actions as features [B, M, A]."""
        names = [*self.action_encoder.continuous, *self.action_encoder.discrete]
        return _each(self.action_encoder, {name: batch[name] for name in names}, batch[f.TEAMMATES])

    def _embed(self, layer: nn.Linear, features: torch.Tensor) -> torch.Tensor:
        return self.activate(functional.linear(features, layer.weight, layer.bias))

    def _judge(self, members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        pooled = self.attention(members, present)
        # A mean does not say over how many.
        size = present.sum(dim=1, keepdim=True).to(pooled.dtype).log()
        value: torch.Tensor = self.head(torch.cat((pooled, size), dim=1)).squeeze(-1)
        return value


def _each(encode: Encoder, fields: Mapping[str, torch.Tensor], places: torch.Tensor) -> torch.Tensor:
    """Returns the features [B, M, F] of M places."""
    if not places.shape[1]:
        return torch.zeros((*places.shape, encode.output_size), device=places.device)
    features: torch.Tensor = encode({name: rows.flatten(0, 1) for name, rows in fields.items()})
    return features.view(*places.shape, encode.output_size)


class Attention(nn.Module):
    """Residual self-attention over members, and the mean over those present."""

    def __init__(self, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.size = size
        self.ask = linear(size, 3 * size, 1.0, generator)
        self.answer = linear(size, size, 1.0, generator)

    def forward(self, members: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Returns one row [B, H] for members [B, E, H], of which at least one is present [B, E]."""
        normal = functional.layer_norm(members, (self.size,))
        asked = functional.linear(normal, self.ask.weight, self.ask.bias)
        # [B, heads, E, size of a head] each
        query, key, worth = asked.view(*asked.shape[:2], 3, NUM_HEADS, -1).permute(2, 0, 3, 1, 4)
        heard = functional.scaled_dot_product_attention(query, key, worth, attn_mask=present[:, None, None, :])
        told = functional.linear(heard.transpose(1, 2).flatten(2), self.answer.weight, self.answer.bias)
        share = present / present.sum(dim=1, keepdim=True)
        return (functional.layer_norm(normal + told, (self.size,)) * share[:, :, None]).sum(dim=1)
