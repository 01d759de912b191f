"""Networks that policies are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def mlp(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    *,
    activation: str,
    output_gain: float,
    generator: torch.Generator,
) -> nn.Sequential:
    """Builds a multi-layer perceptron with orthogonal weights (gain sqrt 2 inside) and zero biases."""
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [_linear(input_size, size, math.sqrt(2.0), generator), _ACTIVATIONS[activation]()]
        input_size = size
    return nn.Sequential(*layers, _linear(input_size, output_size, output_gain, generator))


def _linear(input_size: int, output_size: int, gain: float, generator: torch.Generator) -> nn.Linear:
    # skip_init: the default initialisation would draw from torch's global generator.
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, input_size, output_size)  # type: ignore[no-untyped-call]  # torch's
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer
