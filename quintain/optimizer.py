"""The only place that calls `backward()`: gradients, their average over ranks, clipping and Adam in one step.

All parameters are made views of one flat tensor, and their gradients of another. Clipping, averaging and Adam are then
one operation each instead of one per parameter, which is most of an update's cost for small networks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from quintain.state import as_tensor
from quintain.world import Alone, World

if TYPE_CHECKING:
    from quintain.typing import State


class Optimizer:
    """Adam over the named parameters of a module; rebinds them to flat memory when it is made."""

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        eps: float,
        max_grad_norm: float | None,
        world: World | None = None,
    ) -> None:
        self.parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        self.max_grad_norm = max_grad_norm
        self.world = world or Alone()
        values = list(self.parameters.values())
        self.flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in values]))
        self.grad = torch.zeros_like(self.flat)
        self.flat.grad = self.grad
        with torch.no_grad():
            for parameter, data, grad in zip(values, self._split(self.flat), self._split(self.grad), strict=True):
                parameter.data = data.view_as(parameter)
                parameter.grad = grad.view_as(parameter)
        self.adam = torch.optim.Adam([self.flat], eps=eps, fused=True)
        # Adam's moments exist from the start, so that a checkpoint at step 0 has the same tree as a later one.
        self.adam.state[self.flat] = {
            "step": torch.zeros((), dtype=torch.float32, device=self.flat.device),
            "exp_avg": torch.zeros_like(self.flat),
            "exp_avg_sq": torch.zeros_like(self.flat),
        }

    def step(self, loss: torch.Tensor, learning_rate: float) -> torch.Tensor:
        """Takes one step down the gradient of `loss` and returns the gradient's norm before clipping."""
        self.clear()
        self.add(loss)
        return self.apply(learning_rate)

    def clear(self) -> None:
        """Forgets the gradient."""
        self.grad.zero_()

    def add(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a loss, or of a part of one."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it

    def apply(self, learning_rate: float) -> torch.Tensor:
        """Takes one step down the gradient that was added up and returns its norm before clipping."""
        grad = self.grad
        self.world.average(grad)
        norm: torch.Tensor = torch.linalg.vector_norm(grad)
        if self.max_grad_norm is not None:
            grad.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self.adam.param_groups[0]["lr"] = learning_rate
        self.adam.step()
        return norm

    def state_dict(self) -> State:
        moments = self.adam.state[self.flat]
        return {
            "step": moments["step"].clone(),
            **{
                moment: {
                    name: part.view_as(self.parameters[name]).clone()
                    for name, part in zip(self.parameters, self._split(moments[moment]), strict=True)
                }
                for moment in ("exp_avg", "exp_avg_sq")
            },
        }

    def load_state_dict(self, state: State) -> None:
        moments = self.adam.state[self.flat]
        moments["step"].copy_(as_tensor(state["step"]))
        for moment in ("exp_avg", "exp_avg_sq"):
            if set(state[moment]) != set(self.parameters):
                raise KeyError(f"optimizer state is for {sorted(state[moment])}, not for {sorted(self.parameters)}")
            for name, part in zip(self.parameters, self._split(moments[moment]), strict=True):
                part.copy_(as_tensor(state[moment][name]).reshape(-1))

    def _split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(flat, [p.numel() for p in self.parameters.values()])
