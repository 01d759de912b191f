"""Plugs the clipping and Adam kernel into an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from quintain.algorithms.optimizer import BETAS
from quintain.compiled.kernels.adam import Rates, step_adam

if TYPE_CHECKING:
    from quintain.algorithms.optimizer import Optimizer


def use_adam_kernel(optimizer: Optimizer) -> None:
    """Makes the optimizer clip and step by one kernel call; the formulas are the same."""
    flat, grad = optimizer.flat.detach().numpy(), optimizer.grad.numpy()
    first, second = (moment.numpy() for moment in optimizer.moments.values())
    num_steps = optimizer.num_steps.view(1).numpy()
    max_grad_norm = math.inf if optimizer.max_grad_norm is None else optimizer.max_grad_norm
    eps = optimizer.eps

    @lru_cache(maxsize=1)
    def call_at(learning_rate: float) -> Callable[[], float]:
        rates = Rates(learning_rate, *BETAS, eps, max_grad_norm)
        return step_adam.bind(flat, grad, first, second, num_steps, rates)

    optimizer.kernel = lambda learning_rate: call_at(learning_rate)()
