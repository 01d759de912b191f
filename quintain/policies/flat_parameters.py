"""Parameters as views of one flat tensor, so that a kernel or an optimizer handles all of them in one operation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from quintain.errors import SettingsError


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
    flat = torch.empty(total, dtype=first.dtype, device=first.device)
    take_in(parameters, flat)
    return flat


@torch.inference_mode(False)
def take_in(parameters: Sequence[nn.Parameter], flat: torch.Tensor) -> None:
    """Copies parameters into flat memory, one after the other, and makes them views of it."""
    # First all of them: one may be a view of another's place.
    flat.copy_(torch.cat([p.detach().reshape(-1) for p in parameters]))
    for parameter, part in zip(parameters, torch.split(flat, [p.numel() for p in parameters]), strict=True):
        parameter.data = part.view_as(parameter)


def require_like(name: str, parameter: nn.Parameter, shape: torch.Size, memory: torch.Tensor) -> None:
    """Refuses a parameter that does not fit where the one before it was."""
    found, expected = (
        f"{list(size)} {like.dtype} on {like.device}" for size, like in ((parameter.shape, parameter), (shape, memory))
    )
    if found != expected:
        raise SettingsError(f"{name} was replaced by {found}; expected {expected}. Make a new trainer for other shapes")
