"""Networks of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from quintain.policies.normalizer import FirstLayer

_ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}
# In place where that changes no bit of the gradient: it saves a tensor per layer.
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "tanh": torch.tanh_,
    "relu": torch.relu_,
    "elu": functional.elu,
    "silu": functional.silu,
}


class BareLinear(nn.Linear):
    """A linear layer without its own initialisation.

    Torch's would draw from the global generator, and `nn.utils.skip_init`, which avoids that, imports sympy: a third of
    a second before the first step.
    """

    def reset_parameters(self) -> None:
        pass


class BareConv2d(nn.Conv2d):
    """A convolution without its own initialisation, like BareLinear."""

    def reset_parameters(self) -> None:
        pass


class Mlp(nn.Sequential):
    """A multi-layer perceptron, equal to an nn.Sequential of the same layers, in half its time when small.

    For a few lanes, calling a module costs more than its arithmetic, so `forward` calls the functions behind them.
    """

    def __init__(self, layers: Sequence[nn.Module], activation: str) -> None:
        super().__init__(*layers)
        self.linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self.activation = activation
        self.activate = FUNCTIONS[activation]

    @property
    def weights_and_biases(self) -> list[tuple[nn.Parameter, nn.Parameter]]:
        """Returns the current parameters of every layer; an exporter replaces even the dicts that hold them."""
        held = [layer._parameters for layer in self.linears]
        try:
            return [(each["weight"], each["bias"]) for each in held]  # type: ignore[misc]  # they are never None
        except KeyError:  # a functional call, as TorchRL makes it, puts tensors in the place of parameters
            return [(layer.weight, layer.bias) for layer in self.linears]  # type: ignore[misc]  # as above

    def with_outputs(self, output_size: int, output_gain: float, generator: torch.Generator) -> Mlp:
        """Returns a network with the same hidden layers and new outputs."""
        *hidden, last = self
        assert isinstance(last, nn.Linear)
        return Mlp([*hidden, linear(last.in_features, output_size, output_gain, generator)], self.activation)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        *hidden, (last_weight, last_bias) = self.weights_and_biases
        for weight, bias in hidden:
            input = self.activate(functional.linear(input, weight, bias))
        return functional.linear(input, last_weight, last_bias)


class MlpWithFeatures(Mlp):
    """A multi-layer perceptron whose outputs are followed by the features that its last layer reads."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        *hidden, (last_weight, last_bias) = self.weights_and_biases
        for weight, bias in hidden:
            input = self.activate(functional.linear(input, weight, bias))
        return torch.cat((functional.linear(input, last_weight, last_bias), input), dim=-1)


def mlp(
    input_size: int,
    hidden_sizes: Sequence[int],
    output_size: int,
    *,
    generator: torch.Generator,
    activation: str = "relu",
    output_gain: float | None = None,
    with_features: bool = False,
) -> Mlp:
    """Builds a multi-layer perceptron with orthogonal weights (gain sqrt 2 inside) and zero biases.

    Without a gain it has `uniform_linear` layers.
    """

    def layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
        is_uniform = output_gain is None
        return uniform_linear(inputs, outputs, generator) if is_uniform else linear(inputs, outputs, gain, generator)

    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [layer(input_size, size, math.sqrt(2.0)), _ACTIVATIONS[activation]()]
        input_size = size
    made = MlpWithFeatures if with_features else Mlp
    return made([*layers, layer(input_size, output_size, output_gain or 0.0)], activation)


def first_layers(*networks: nn.Module) -> list[FirstLayer]:
    """Returns the first linear layer of each network; a network of another kind is left out."""
    first = [network[0] if isinstance(network, nn.Sequential) else network for network in networks]
    layers = [layer for layer in first if isinstance(layer, nn.Linear)]
    return [FirstLayer(layer.weight, layer.bias) for layer in layers if layer.bias is not None]


def linear(input_size: int, output_size: int, gain: float, generator: torch.Generator) -> nn.Linear:
    layer = BareLinear(input_size, output_size)
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    nn.init.zeros_(layer.bias)
    return layer


def uniform_linear(input_size: int, output_size: int, generator: torch.Generator) -> nn.Linear:
    """Returns a layer with weights and biases uniform within 1 over the root of its inputs, torch's default."""
    layer = BareLinear(input_size, output_size)
    bound = 1.0 / math.sqrt(input_size)
    for parameter in (layer.weight, layer.bias):
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return layer
