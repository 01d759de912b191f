"""Modules that all ranks train in a loop of a user's own: equal weights, and gradients that are averaged over ranks.

As with DistributedDataParallel, clipping, accumulation and gradient scalers see the gradient of all ranks. Unlike it,
the loss may be computed in any way: by several forward passes, by methods other than `forward`, or without some of the
parameters. That is why it is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce

import numpy as np
import torch
from torch import nn

from quintain.core.process_group import ProcessGroup


class RankModules:
    """Modules that begin with the weights of rank 0, and average gradients in one message for each backward pass.

    All ranks must add the same modules in the same order, and call `backward` equally often. `meet` is called with the
    number of values in each message before it is sent, so that ranks can find out that they do not.
    """

    def __init__(self, world: ProcessGroup, meet: Callable[[int], None] = lambda num_values: None) -> None:
        self.world = world
        self.meet = meet
        self.modules: list[nn.Module] = []
        self.parameters: list[nn.Parameter] = []
        """Those that are learned by gradients, now or once they are no longer frozen."""
        self.is_syncing = True
        self._pass = -1
        """The backward pass that ends with an average."""
        self._message = torch.zeros(0)
        """All gradients one after another, then for each parameter whether there is one."""

    def add(self, module: nn.Module) -> None:
        """Takes a module; parameters that are known already are left out."""
        if self.world.size == 1:
            return
        self.modules.append(module)
        for tensor in (*module.parameters(), *module.buffers()):
            self.world.share(tensor.detach())
        known = {id(each) for each in self.parameters}
        new = [each for each in module.parameters() if each.is_floating_point() and id(each) not in known]
        for each in new:
            # One that is frozen may learn later, and takes no hook now.
            is_learned = each.requires_grad
            each.requires_grad_()
            each.register_post_accumulate_grad_hook(self._hear)  # type: ignore[no-untyped-call]  # torch's
            each.requires_grad_(is_learned)
        self.parameters += new

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Lets backward passes accumulate gradients of this rank alone; the next one outside averages them all."""
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before

    @torch.no_grad()
    def average_buffers(self) -> None:
        """Averages running statistics, whose updates each rank made from its own data; rank 0 gives the others."""
        for module in self.modules:
            for buffer in module.buffers():
                own = buffer.clone()
                self.world.share(buffer)
                if buffer.is_floating_point():
                    # Those that are equal stay as they are, to the last bit.
                    difference = own - buffer
                    self.world.average(difference)
                    buffer.add_(difference)

    @torch.no_grad()
    def diverged_rank(self) -> int | None:
        """Returns the first rank whose weights are not those of rank 0, up to rounding; None if all are equal."""
        squares = [float(each.double().square().sum()) for each in self.parameters]
        first, *others = np.array(self.world.gather(squares))
        are_other = (not np.allclose(own, first, rtol=1e-6, atol=0.0, equal_nan=True) for own in others)
        return next((rank for rank, is_other in enumerate(are_other, start=1) if is_other), None)

    def _hear(self, parameter: torch.Tensor) -> None:
        """The gradient hook of each parameter; ranks may reach their parameters in different orders."""
        # One that failed in the middle had an average that was never called.
        if self.is_syncing and self._pass != (now := torch._C._current_graph_task_id()):
            self._pass = now
            torch.autograd.Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        """All-reduces gradients to their mean after the backward pass. A rank without a gradient counts as zeros.

        Gradients that were averaged before and accumulate further are right again: their mean is themselves.
        """
        learned = [each for each in self.parameters if each.requires_grad]
        sizes = [*(each.numel() for each in learned), len(learned)]
        self.meet(sum(sizes))
        if len(self._message) != sum(sizes):
            dtype = reduce(torch.promote_types, (each.dtype for each in learned), torch.float32)
            self._message = torch.zeros(sum(sizes), dtype=dtype)
        *parts, has_gradient = torch.split(self._message.zero_(), sizes)
        for place, (part, parameter) in enumerate(zip(parts, learned, strict=True)):
            if parameter.grad is not None:
                part.copy_(parameter.grad.reshape(-1))
                has_gradient[place] = 1.0
        self.world.average(self._message)
        for is_given, part, parameter in zip(has_gradient.tolist(), parts, learned, strict=True):
            if is_given and parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            if parameter.grad is not None:
                parameter.grad.copy_(part.view_as(parameter))
