"""A multi-layer perceptron with preallocated memory: forward, and a hand-written backward pass instead of autograd.

Weights and gradients are another module's memory; activations are its own. Every call is bound once: between large
products, which evict everything else from the caches, any other work costs many times as much.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from quintain.algorithms.twin_critics import TwinCritics
    from quintain.policies.networks import Mlp

_aten = torch.ops.aten

Call = Callable[[], Any]


class Layer(NamedTuple):
    """One layer's parameters and their gradients, as views."""

    weight: torch.Tensor
    """[inputs, outputs]"""
    bias: torch.Tensor
    """[outputs]"""
    weight_grad: torch.Tensor | None = None
    bias_grad: torch.Tensor | None = None


def layers_of(network: Mlp, *, learns: bool) -> list[Layer]:
    """Returns the layers of a network; one that learns has places for its gradients."""
    return [
        Layer(weight.detach().T, bias.detach(), *((grad_of(weight).T, grad_of(bias)) if learns else (None, None)))
        for weight, bias in network.weights_and_biases
    ]


def layers_of_twin(critics: TwinCritics, which: int, *, learns: bool) -> list[Layer]:
    """Returns the layers of one of two critics."""
    layers = []
    for weight, bias in critics.layers:
        places = (grad_of(weight)[which], grad_of(bias)[which, 0]) if learns else (None, None)
        layers.append(Layer(weight.detach()[which], bias.detach()[which, 0], *places))
    return layers


def grad_of(parameter: torch.Tensor) -> torch.Tensor:
    """Returns where a parameter's gradient belongs."""
    assert parameter.grad is not None, "the optimizer gives every parameter a place for its gradient"
    return parameter.grad


class _Activation(NamedTuple):
    apply: Callable[..., Call]
    """Returns a call that writes the activation of a layer's sums to the second tensor, which may be the same."""
    differentiate: Callable[..., Call]
    """Returns a call that multiplies derivatives by the slope, given the sums and the activations."""
    needs_sums: bool = False
    """Whether the slope needs the sums, which must then be kept."""


_ACTIVATIONS = {
    "relu": _Activation(
        lambda sums, out: partial(torch.relu_, out),
        lambda delta, sums, out: partial(_aten.threshold_backward.grad_input, delta, out, 0, grad_input=delta),
    ),
    "tanh": _Activation(
        lambda sums, out: partial(torch.tanh_, out),
        lambda delta, sums, out: partial(_aten.tanh_backward.grad_input, delta, out, grad_input=delta),
    ),
    "elu": _Activation(
        lambda sums, out: partial(torch.nn.functional.elu_, out),
        lambda delta, sums, out: partial(
            _aten.elu_backward.grad_input, delta, 1.0, 1.0, 1.0, True, out, grad_input=delta
        ),
    ),
    "silu": _Activation(
        lambda sums, out: partial(_aten.silu.out, sums, out=out),
        lambda delta, sums, out: partial(_aten.silu_backward.grad_input, delta, sums, grad_input=delta),
        needs_sums=True,
    ),
}


class DenseLayers:
    """Evaluates the rows in `seen`, and backpropagates derivatives by the outputs.

    Derivatives by the outputs are written to `by_output [num_back_rows, outputs]`, for the first rows or for all; those
    by the sums of the first layer are then in `by_first_sums`.
    """

    def __init__(
        self, layers: Sequence[Layer], seen: torch.Tensor, activation: str, num_back_rows: int | None = None
    ) -> None:
        self.first_weight = layers[0].weight
        num_rows, back = len(seen), slice(len(seen) if num_back_rows is None else num_back_rows)
        active = _ACTIVATIONS[activation]
        widths = [len(layer.bias) for layer in layers]
        sums = [torch.zeros(num_rows, width) for width in widths]
        hidden = [torch.zeros_like(s) if active.needs_sums else s for s in sums]
        deltas = [torch.zeros(num_rows, width)[back] for width in widths]
        passed = [seen, *hidden[:-1]]
        self.outputs, self.by_output, self.by_first_sums = sums[-1], deltas[-1], deltas[0]
        self.forward_calls: list[Call] = []
        self.back_calls: list[Call] = []
        last = len(layers) - 1
        for i, layer in enumerate(layers):
            self.forward_calls.append(partial(torch.addmm, layer.bias, passed[i], layer.weight, out=sums[i]))
            if i < last:
                self.forward_calls.append(active.apply(sums[i], hidden[i]))
        for i in range(last, -1, -1):
            layer, before = layers[i], passed[i][back]
            if layer.weight_grad is not None:
                self.back_calls.append(partial(torch.mm, before.T, deltas[i], out=layer.weight_grad))
                self.back_calls.append(partial(torch.sum, deltas[i], 0, out=layer.bias_grad))
            if i:
                self.back_calls.append(partial(torch.mm, deltas[i], layer.weight.T, out=deltas[i - 1]))
                self.back_calls.append(active.differentiate(deltas[i - 1], sums[i - 1][back], before))

    def evaluate(self) -> None:
        """Computes `outputs [rows, outputs]` of the rows in `seen`."""
        for call in self.forward_calls:
            call()

    def differentiate(self) -> None:
        """Writes the gradients of layers that have a buffer for them, and `by_first_sums`."""
        for call in self.back_calls:
            call()
