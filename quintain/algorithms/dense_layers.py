"""A multi-layer perceptron in memory that is made once: forwards, and backwards by hand instead of by autograd.

The weights are another module's, and so is the memory that gradients go to; what is between the layers is its own.
Every view is made once too: between large products, which leave nothing else in the caches, each costs microseconds.
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


class _Step(NamedTuple):
    """One layer and all that its products read and write; of what goes backwards, the first rows only."""

    layer: Layer
    passed: torch.Tensor
    """What the layer sees, [rows, inputs]."""
    sums: torch.Tensor
    hidden: torch.Tensor | None
    """What the layer passes on; None for the last one."""
    passed_back: torch.Tensor
    """[inputs, rows that go backwards]"""
    sums_before: torch.Tensor | None
    """The sums that what it sees came from; None for the first layer."""
    weight_back: torch.Tensor
    """[outputs, inputs]"""
    delta: torch.Tensor
    """Derivatives by the sums."""


class DenseLayers:
    """Evaluates the rows that stand in `seen`, and turns derivatives by the outputs into derivatives by all before.

    Derivatives by the outputs are put into `by_output [num_back_rows, outputs]`, for the first rows or for all.
    """

    def __init__(
        self, layers: Sequence[Layer], seen: torch.Tensor, activation: str, num_back_rows: int | None = None
    ) -> None:
        num_rows = len(seen)
        num_back = num_rows if num_back_rows is None else num_back_rows
        self.activation = _ACTIVATIONS[activation]
        self.steps: list[_Step] = []
        passed, before = seen, None
        for i, layer in enumerate(layers):
            sums, delta = (torch.zeros(rows, len(layer.bias)) for rows in (num_rows, num_back))
            hidden = torch.zeros_like(sums) if self.activation.needs_sums else sums
            self.steps.append(
                _Step(
                    layer,
                    passed,
                    sums,
                    hidden if i + 1 < len(layers) else None,
                    passed[:num_back].T,
                    before,
                    layer.weight.T,
                    delta,
                )
            )
            passed, before = hidden, sums[:num_back]
        self.outputs = self.steps[-1].sums
        self.by_output = self.steps[-1].delta

    def forward(self) -> None:
        """Fills `outputs [rows, outputs]` for what stands in `seen`."""
        for step in self.steps:
            torch.addmm(step.layer.bias, step.passed, step.layer.weight, out=step.sums)
            if step.hidden is not None:
                self.activation.apply(step.sums, step.hidden)

    def backward(self) -> torch.Tensor:
        """Writes the gradients of layers that have a place for them; returns derivatives by the first layer's sums."""
        for i in range(len(self.steps) - 1, -1, -1):
            layer, delta, passed = self.steps[i].layer, self.steps[i].delta, self.steps[i].passed_back
            if layer.weight_grad is not None:
                torch.mm(passed, delta, out=layer.weight_grad)
                torch.sum(delta, 0, out=layer.bias_grad)
            sums_before = self.steps[i].sums_before
            if sums_before is not None:
                before = self.steps[i - 1].delta
                torch.mm(delta, self.steps[i].weight_back, out=before)
                self.activation.descend(before, sums_before, passed.T)
        return self.steps[0].delta
