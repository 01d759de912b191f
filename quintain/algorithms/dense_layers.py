"""A multi-layer perceptron in memory that is made once: forwards, and backwards by hand instead of by autograd.

The weights are another module's, and so is the memory that gradients go to; what is between the layers is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

_aten = torch.ops.aten


class Layer(NamedTuple):
    """One layer's parameters and where their gradients belong; views, so that every owner sees the same numbers."""

    weight: torch.Tensor
    """[inputs, outputs]"""
    bias: torch.Tensor
    """[outputs]"""
    weight_grad: torch.Tensor | None = None
    bias_grad: torch.Tensor | None = None


class _Activation(NamedTuple):
    apply: Callable[[torch.Tensor, torch.Tensor], object]
    """Writes what follows from the sums of a layer to the second tensor, which may be the same."""
    descend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]
    """Multiplies a derivative by the slope, given the sums and what followed from them."""
    needs_sums: bool = False
    """Whether the slope follows from the sums only, so that they must be kept."""


_ACTIVATIONS = {
    "relu": _Activation(
        lambda sums, out: torch.relu_(out),
        lambda delta, sums, out: _aten.threshold_backward.grad_input(delta, out, 0, grad_input=delta),
    ),
    "tanh": _Activation(
        lambda sums, out: torch.tanh_(out),
        lambda delta, sums, out: _aten.tanh_backward.grad_input(delta, out, grad_input=delta),
    ),
    "elu": _Activation(
        lambda sums, out: torch.nn.functional.elu_(out),
        lambda delta, sums, out: _aten.elu_backward.grad_input(delta, 1.0, 1.0, 1.0, True, out, grad_input=delta),
    ),
    "silu": _Activation(
        lambda sums, out: _aten.silu.out(sums, out=out),
        lambda delta, sums, out: _aten.silu_backward.grad_input(delta, sums, grad_input=delta),
        needs_sums=True,
    ),
}


class DenseLayers:
    """Evaluates rows, and turns derivatives by the outputs into derivatives by weights and by what was seen."""

    def __init__(self, layers: Sequence[Layer], num_rows: int, activation: str) -> None:
        self.layers = list(layers)
        self.activation = _ACTIVATIONS[activation]
        widths = [len(layer.bias) for layer in layers]
        self.sums = [torch.zeros(num_rows, width) for width in widths]
        """What each layer adds up, [rows, width]."""
        self.hidden = [torch.zeros_like(s) if self.activation.needs_sums else s for s in self.sums[:-1]]
        """What each hidden layer passes on; the sums themselves where their slope follows from it."""
        self.deltas = [torch.zeros(num_rows, width) for width in widths[:-1]]
        self.seen = self.sums[0]

    def forward(self, seen: torch.Tensor) -> torch.Tensor:
        """Returns the outputs for rows [B, inputs], in memory that the next call reuses."""
        self.seen = passed = seen
        for layer, sums, hidden in zip(self.layers, self.sums, self.hidden, strict=False):
            torch.addmm(layer.bias, passed, layer.weight, out=sums)
            self.activation.apply(sums, hidden)
            passed = hidden
        return torch.addmm(self.layers[-1].bias, passed, self.layers[-1].weight, out=self.sums[-1])

    def backward(self, delta: torch.Tensor) -> torch.Tensor:
        """Returns the derivatives by the sums of the first layer, given those by the outputs [B, outputs].

        Writes the gradients of the layers that have a place for them. Fewer rows than went forwards are the first.
        """
        rows = len(delta)
        for i in range(len(self.layers) - 1, -1, -1):
            layer, passed = self.layers[i], self.hidden[i - 1] if i else self.seen
            if layer.weight_grad is not None:
                torch.mm(passed[:rows].T, delta, out=layer.weight_grad)
                torch.sum(delta, 0, out=layer.bias_grad)
            if i:
                delta = torch.mm(delta, layer.weight.T, out=self.deltas[i - 1][:rows])
                self.activation.descend(delta, self.sums[i - 1][:rows], passed[:rows])
        return delta
