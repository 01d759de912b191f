"""Two critics of the same shape, evaluated together: every layer of both is one batched product."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from quintain.data.spec import LeafSpec
from quintain.policies.encoders import Encoder
from quintain.policies.flat_parameters import flat_memory, require_like, take_in
from quintain.policies.networks import FUNCTIONS, uniform_linear
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import SoftActorSettings

if TYPE_CHECKING:
    from quintain.typing import Array


class TwinCritics(nn.Module):
    """Says twice, independently, what actions are worth in observations.

    Continuous actions are an input. Choices are outputs, one for each: the value of choosing several at once is the
    sum of theirs, so that the expectation over independent choices is exact. Without choices there is one output.
    """

    def __init__(
        self,
        specs: Mapping[str, LeafSpec],
        num_numbers: int,
        num_choices: int,
        settings: SoftActorSettings,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(specs, settings, generator)
        sizes = [self.encoder.output_size + num_numbers, *settings.hidden_sizes, max(1, num_choices)]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for before, after in pairwise(sizes):
            # Orthogonal weights are larger, and SAC learned HalfCheetah less well with them (decision 0026).
            twins = [uniform_linear(before, after, generator) for _ in range(2)]
            self.weights.append(nn.Parameter(torch.stack([twin.weight.detach().T for twin in twins]).contiguous()))
            self.biases.append(nn.Parameter(torch.stack([twin.bias.detach()[None] for twin in twins])))
        self.activate = FUNCTIONS[settings.activation]
        self.everything = list(self.parameters())
        self.addresses, self.flat = [0], torch.zeros(0)

    @property
    def layers(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Returns weights and biases of every layer as they are now."""
        # A ParameterList is slow to go through; these are where it keeps its parameters, so that new ones are seen.
        weights, biases = self.weights._parameters, self.biases._parameters
        return list(zip(weights.values(), biases.values(), strict=True))  # type: ignore[arg-type]  # they are never None

    def encode(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the features [B, F] of observations."""
        features: torch.Tensor = self.encoder(obs)
        return features

    def values(self, features: torch.Tensor, numbers: torch.Tensor | None, *, is_frozen: bool = False) -> torch.Tensor:
        """Returns the values [2, B, max(1, choices)]; frozen critics pass gradients on and take none."""
        layers = [(w.detach(), b.detach()) for w, b in self.layers] if is_frozen else self.layers
        seen = features if numbers is None else torch.cat((features, numbers), dim=1)
        hidden = seen.expand(2, -1, -1)
        for weight, bias in layers[:-1]:
            hidden = self.activate(torch.baddbmm(bias, hidden, weight))
        weight, bias = layers[-1]
        if weight.shape[2] == 1:
            # A matrix product with one column costs several times what it is worth.
            value: torch.Tensor = (hidden * weight.transpose(1, 2)).sum(dim=2, keepdim=True) + bias
            return value
        return torch.baddbmm(bias, hidden, weight)

    @property
    def first_layer(self) -> FirstLayer:
        """The layer of both that reads features and, behind them, continuous actions."""
        return FirstLayer(self.weights[0], self.biases[0], is_transposed=True)

    def observe(self, obs: Mapping[str, Array], target: TwinCritics) -> list[Fold]:
        """Learns the observations' scale from a batch; its move is folded into these critics and into their target."""
        return self.encoder.observe(obs, [self.first_layer, target.first_layer])

    def target(self) -> TwinCritics:
        """Returns a copy that takes no gradients and sees observations on the same scale, now and later."""
        copied = copy.deepcopy(self).requires_grad_(False)
        copied.encoder.share_scale(self.encoder)
        # At once, so that whoever reads the weights elsewhere may keep views of them.
        copied.in_one_piece()
        return copied

    def in_one_piece(self) -> torch.Tensor:
        """Returns all weights as one vector that shares their memory."""
        # Whoever moved the parameters to other memory moved the first one too.
        if self.everything[0].data_ptr() != self.addresses[0]:
            self.flat = flat_memory(self.everything)
            self.addresses = [parameter.data_ptr() for parameter in self.everything]
        return self.flat

    def adopt(self) -> None:
        """Takes weights that were replaced, or moved to other memory, into the memory where they have been."""
        now = list(self.parameters())
        if [parameter.data_ptr() for parameter in now] == self.addresses:
            return
        for (name, parameter), before in zip(self.named_parameters(), self.everything, strict=True):
            require_like(name, parameter, before.shape, self.flat)
        take_in(now, self.flat)
        self.everything = now

    @torch.no_grad()
    def follow(self, others: TwinCritics, tau: float) -> None:
        """Moves each weight a part of the way to another's."""
        self.in_one_piece().lerp_(others.in_one_piece(), tau)
