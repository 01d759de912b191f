"""Parameters as views of one flat tensor, so that a kernel or an optimizer handles all of them in one operation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, Self

import torch
from torch import nn

from quintain.errors import SettingsError


@torch.inference_mode(False)
def flat_memory(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    """Returns the tensor of which all parameters are consecutive views, after making them so if they are not.

    The first call may come from acting, in inference mode; tensors made there could never take part in learning.
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
    flat = torch.empty(total, dtype=first.dtype, device=first.device)
    take_in(parameters, flat)
    return flat


@torch.inference_mode(False)
def take_in(parameters: Sequence[nn.Parameter], flat: torch.Tensor) -> None:
    """Copies parameters into flat memory and makes them views of it."""
    # First all of them: one may be a view of another's place.
    flat.copy_(torch.cat([p.detach().reshape(-1) for p in parameters]))
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)


def require_like(name: str, parameter: nn.Parameter, shape: torch.Size, memory: torch.Tensor) -> None:
    """Refuses a parameter that does not fit in place of the previous one."""
    found, expected = (
        f"{list(size)} {like.dtype} on {like.device}" for size, like in ((parameter.shape, parameter), (shape, memory))
    )
    if found != expected:
        raise SettingsError(f"{name} was replaced by {found}; expected {expected}. Make a new trainer for other shapes")


class FlatModule(nn.Module):
    """A module whose weights can be had as one vector, so that a soft update of its target network is one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[nn.Parameter] = []
        self.addresses, self.flat = [0], torch.zeros(0)

    def in_one_piece(self) -> torch.Tensor:
        """Returns all weights as one vector that shares their memory."""
        if not self.everything:
            self.everything = list(self.parameters())
        # Moving the parameters to other memory moves the first one too.
        if self.everything[0].data_ptr() != self.addresses[0]:
            self.flat = flat_memory(self.everything)
            self.addresses = [parameter.data_ptr() for parameter in self.everything]
        return self.flat

    def adopt(self) -> None:
        """Copies weights that were replaced, or moved to other memory, back to the original memory."""
        now = list(self.parameters())
        if [parameter.data_ptr() for parameter in now] == self.addresses:
            return
        for (name, parameter), before in zip(self.named_parameters(), self.everything, strict=True):
            require_like(name, parameter, before.shape, self.flat)
        take_in(now, self.flat)
        self.everything = now

    @torch.no_grad()
    def soft_update_(self, source: Self, tau: float) -> None:
        """Moves each weight the part `tau` of the way to the source's (Polyak averaging); 1 copies them."""
        self.in_one_piece().lerp_(source.in_one_piece(), tau)


class WeightWatch:
    """Notices whether parameters of modules were replaced or moved to other memory.

    It looks at every place that holds a module or a parameter. Walking the modules anew would cost more than a step of
    a small environment.
    """

    def __init__(self, holder: dict[str, Any]) -> None:
        """Watches the modules and parameters among these attributes."""
        self.holders: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.values: list[object] = []
        self.parameters: list[nn.Parameter] = []
        self._add(holder)
        self.addresses = [parameter.data_ptr() for parameter in self.parameters]

    def _add(self, holder: dict[str, Any]) -> None:
        for name, value in holder.items():
            if isinstance(value, nn.Parameter):
                self.parameters.append(value)
            elif isinstance(value, nn.Module):
                self._add(value._parameters)
                self._add(value._modules)
            else:
                continue
            self.holders.append(holder)
            self.names.append(name)
            self.values.append(value)

    def sees(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Returns whether all of these are watched."""
        return {id(parameter) for parameter in parameters} <= {id(parameter) for parameter in self.parameters}

    def is_unchanged(self) -> bool:
        """Returns whether every parameter is where it was, in the same memory."""
        if [parameter.data_ptr() for parameter in self.parameters] != self.addresses:
            return False
        # Without a frame of Python for each place: this runs twice in a cycle.
        return all(map(is_, map(dict.get, self.holders, self.names), self.values))
