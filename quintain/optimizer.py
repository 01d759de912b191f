"""The only place that calls `backward()`: gradients, their average over ranks, clipping and Adam in one step.

All parameters are made views of one flat tensor, and their gradients of another. Clipping, averaging and Adam are then
one operation each instead of one per parameter, which is most of an update's cost for small networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim.adam import adam

from quintain.state import as_tensor
from quintain.world import Alone, World

if TYPE_CHECKING:
    from quintain.typing import State

_BETAS = (0.9, 0.999)

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
        with torch.no_grad():
            for parameter, grad in zip(values, self._split(self.grad), strict=True):
                parameter.grad = grad.view_as(parameter)
        self.eps = eps
        # Adam's moments exist from the start, so that a checkpoint at step 0 has the same tree as a later one.
        self.num_steps = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self.moments = {moment: torch.zeros_like(self.flat.data) for moment in ("exp_avg", "exp_avg_sq")}
        self.kernel: Kernel | None = None

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

    def use_kernel(self) -> None:
        """Clips and descends by a compiled kernel from now on; the formulas are the same."""
        from quintain.compiled.adam import Rates, descend

        flat, grad = self.flat.detach().numpy(), self.grad.numpy()
        first, second = (moment.numpy() for moment in self.moments.values())
        num_steps = self.num_steps.view(1).numpy()
        max_grad_norm = math.inf if self.max_grad_norm is None else self.max_grad_norm

        @lru_cache(maxsize=1)
        def call_at(learning_rate: float) -> Callable[[], float]:
            rates = Rates(learning_rate, *_BETAS, self.eps, max_grad_norm)
            return descend.bind(flat, grad, first, second, num_steps, rates)

        self.kernel = lambda learning_rate: call_at(learning_rate)()

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
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            lr=learning_rate,
            weight_decay=0.0,
            eps=self.eps,
            maximize=False,
            found_inf=is_skipped,
        )

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


@torch.inference_mode(False)
def flat_memory(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Returns the tensor that all parameters are consecutive views of, after making them so if they are not.

    The first to need it may be acting, in inference mode; what is made there could never take part in learning.
    """
    total, first = sum(p.numel() for p in parameters), parameters[0].detach()
    address = first.data_ptr()
    for parameter in parameters:
        is_next = parameter.data_ptr() == address and parameter.is_contiguous()
        if not is_next or parameter.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
            break
        address += parameter.numel() * parameter.element_size()
    else:
        return first.as_strided((total,), (1,))
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)
    return flat
