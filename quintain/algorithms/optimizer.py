"""The only place that calls `backward()`: gradients, their average over ranks, clipping and Adam in one step.

All parameters are made views of one flat tensor, and their gradients of another. Clipping, averaging and Adam are then
one operation each instead of one per parameter, which is most of an update's cost for small networks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim.adam import adam

from quintain.core.process_group import Alone, World
from quintain.core.state import as_tensor
from quintain.errors import SettingsError
from quintain.policies.flat_parameters import flat_memory, require_like, take_in

if TYPE_CHECKING:
    from quintain.typing import State

BETAS = (0.9, 0.999)
"""How slowly Adam's first and second moments follow the gradient."""

Kernel = Callable[[float], float]
"""Clips the gradient and takes a step of the given size; returns the norm before clipping."""


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
        self.flat = nn.Parameter(flat_memory(values))
        # One place more than there are parameters: how much this rank's gradient counts travels with it.
        self.message = torch.zeros(self.flat.numel() + 1, dtype=self.flat.dtype, device=self.flat.device)
        self.grad = self.message[:-1]
        self.flat.grad = self.grad
        self.addresses = [parameter.data_ptr() for parameter in values]
        self._give_gradients()
        self.eps = eps
        # Adam's moments exist from the start, so that a checkpoint at step 0 has the same tree as a later one.
        self.num_steps = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self.moments = {moment: torch.zeros_like(self.flat.data) for moment in ("exp_avg", "exp_avg_sq")}
        self.kernel: Kernel | None = None
        """Clips and steps in place of torch's operations where acceleration sets it; the formulas are the same."""

    def adopt(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        """Takes in parameters that were put in the place of others since, or moved to other memory.

        Their values are copied to where the parameters have always been, so that every view of that memory sees them;
        then they are views of it themselves. Moments stay.
        """
        now = {name: parameter for name, parameter in named_parameters if name in self.parameters}
        if len(now) < len(self.parameters):
            missing = next(name for name in self.parameters if name not in now)
            raise SettingsError(f"{missing} is gone, and the optimizer was made for it; make a new trainer")
        held = {name: now[name] for name in self.parameters}
        is_same = all(parameter is self.parameters[name] for name, parameter in held.items())
        if is_same and [parameter.data_ptr() for parameter in held.values()] == self.addresses:
            return
        for name, parameter in held.items():
            require_like(name, parameter, self.parameters[name].shape, self.flat)
        take_in(list(held.values()), self.flat.detach())
        self.parameters = held
        self._give_gradients()

    @torch.no_grad()
    def _give_gradients(self) -> None:
        for parameter, grad in zip(self.parameters.values(), self._split(self.grad), strict=True):
            parameter.grad = grad.view_as(parameter)

    def step(
        self, loss: torch.Tensor, learning_rate: float, weight: float | torch.Tensor = 1.0
    ) -> torch.Tensor | float:
        """Takes one step down the gradient of `loss` and returns the gradient's norm before clipping."""
        self.clear()
        self.add(loss)
        return self.apply(learning_rate, weight)

    def clear(self) -> None:
        """Forgets the gradient."""
        self.grad.zero_()

    def add(self, loss: torch.Tensor) -> None:
        """Adds the gradient of a loss, or of a part of one."""
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it

    def apply(self, learning_rate: float, weight: float | torch.Tensor = 1.0) -> torch.Tensor | float:
        """Takes one step down the gradient that was added up and returns its norm before clipping.

        Ranks take the step together, down the mean of their gradients, each counting by its `weight`: the rows that
        its loss is a mean of.

        A gradient that is not finite moves nothing: the device itself leaves the step out, so nobody waits for it.
        """
        grad = self.grad
        if self.world.size > 1:
            self.message[-1] = 1.0
            self.message.mul_(weight)
            self.world.average(self.message)
            grad.div_(self.message[-1])
        if self.kernel is not None:
            return self.kernel(learning_rate)
        norm: torch.Tensor = torch.linalg.vector_norm(grad)
        if self.max_grad_norm is not None:
            grad.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0))
        self._descend(grad, learning_rate, torch.isfinite(norm).logical_not_().float())
        return norm

    @torch.no_grad()
    def _descend(self, grad: torch.Tensor, learning_rate: float, is_skipped: torch.Tensor) -> None:
        # The function behind torch.optim.Adam: the bookkeeping of the class costs more than this kernel.
        adam(
            [self.flat],
            [grad],
            [self.moments["exp_avg"]],
            [self.moments["exp_avg_sq"]],
            [],
            [self.num_steps],
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
            found_inf=is_skipped,
        )

    def moments_of(self, parameter: torch.Tensor) -> list[torch.Tensor] | None:
        """Returns views of the first and second moments of one parameter's gradient; None if it is not trained here."""
        start = 0
        for own in self.parameters.values():
            if own is parameter:
                return [flat[start : start + own.numel()].view_as(own) for flat in self.moments.values()]
            start += own.numel()
        return None

    def state_dict(self) -> State:
        return {
            "step": self.num_steps.clone(),
            **{
                moment: {
                    name: part.view_as(self.parameters[name]).clone()
                    for name, part in zip(self.parameters, self._split(flat), strict=True)
                }
                for moment, flat in self.moments.items()
            },
        }

    def load_state_dict(self, state: State) -> None:
        self.num_steps.copy_(as_tensor(state["step"]))
        for moment, flat in self.moments.items():
            if set(state[moment]) != set(self.parameters):
                raise KeyError(f"optimizer state is for {sorted(state[moment])}, not for {sorted(self.parameters)}")
            for name, part in zip(self.parameters, self._split(flat), strict=True):
                part.copy_(as_tensor(state[moment][name]).reshape(-1))

    def _split(self, flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split(flat, [p.numel() for p in self.parameters.values()])
