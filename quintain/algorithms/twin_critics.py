"""Two critics of the same shape, evaluated together: every layer of both is one batched product."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import nn

from quintain.data.spec import LeafSpec
from quintain.policies.encoders import make_encoder
from quintain.policies.flat_parameters import FlatModule
from quintain.policies.networks import FUNCTIONS, uniform_linear
from quintain.policies.normalizer import FirstLayer, Fold
from quintain.policies.settings import NetworkSettings

if TYPE_CHECKING:
    from quintain.typing import Array


class TwinCritics(FlatModule):
    """Two independent Q-functions.

    Continuous actions are an input. Discrete options are outputs, one each: the value of several discrete actions at
    once is the sum of theirs, so that the expectation over independent ones is exact. Without discrete actions there is
    one output.
    """

    def __init__(
        self,
        specs: Mapping[str, LeafSpec],
        num_continuous: int,
        num_choices: int,
        settings: NetworkSettings,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = make_encoder(specs, settings, generator)
        sizes = [self.encoder.output_size + num_continuous, *settings.hidden_sizes, max(1, num_choices)]
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for before, after in pairwise(sizes):
            # Orthogonal weights are larger, and SAC learned HalfCheetah less well with them (decision 0026).
            twins = [uniform_linear(before, after, generator) for _ in range(2)]
            self.weights.append(nn.Parameter(torch.stack([twin.weight.detach().T for twin in twins]).contiguous()))
            self.biases.append(nn.Parameter(torch.stack([twin.bias.detach()[None] for twin in twins])))
        self.activate = FUNCTIONS[settings.activation]

    @property
    def layers(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Returns the current weights and biases of every layer."""
        # A ParameterList is slow to go through; these are where it keeps its parameters, so that new ones are seen.
        weights, biases = self.weights._parameters, self.biases._parameters
        return list(zip(weights.values(), biases.values(), strict=True))  # type: ignore[arg-type]  # they are never None

    def encode(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the features [B, F] of observations."""
        features: torch.Tensor = self.encoder(obs)
        return features

    def values(self, features: torch.Tensor, numbers: torch.Tensor | None, *, is_frozen: bool = False) -> torch.Tensor:
        """Returns the values [2, B, max(1, options)]; frozen critics propagate gradients but get none."""
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
        """The first layer of both, which reads features and then continuous actions."""
        return FirstLayer(self.weights[0], self.biases[0], is_transposed=True)

    def observe(self, obs: Mapping[str, Array], target: TwinCritics) -> list[Fold]:
        """Updates the observation normaliser from a batch; the change is folded into these critics and their target."""
        return self.encoder.observe(obs, [self.first_layer, target.first_layer])
