"""A device that is none: tensors of torch's `meta`, whose contents are on the CPU and which mix with nothing there.

Inside `pretended_device()` such tensors compute as those of the CPU do. What a GPU refuses is refused: an operation on
tensors of both devices, numpy's face of one, compiled kernels. So code for GPUs can be run where there is none, and its
numbers compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
_CROSSING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_JOINING = {torch.ops.aten.cat.default, torch.ops.aten.stack.default}
_MADE_HERE = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default}


class _Pretended(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.contents: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}
        """Storages there and here, by the address of the first."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        there = [each for each in given if each.device == DEVICE]
        wanted = kwargs.get("device")
        makes_there = torch.device(wanted) == DEVICE if wanted is not None else bool(there)
        if not there and not makes_there:
            return func(*args, **kwargs)
        # Without gradients (`inference_mode`) torch leaves operations that are made of others as they are.
        with self:
            if (made := func.decompose(*args, **kwargs)) is not NotImplemented:
                return made
        # A number may stand beside tensors of any device, but not among them.
        is_joining = func in _JOINING
        if func not in _CROSSING and any(each.device != DEVICE and (is_joining or each.dim()) for each in given):
            raise RuntimeError(f"{func} of tensors on the CPU and on the device")
        if func.namespace == "c10d":
            raise RuntimeError(f"{func} is for tensors of the CPU")
        if func is torch.ops.aten.set_.source_Tensor or (func in _MADE_HERE):
            return func(*tree_map(self._here, args))
        aliases = any(each.alias_info is not None for each in func._schema.arguments) and func not in _CROSSING
        here = {name: torch.device("cpu") if name == "device" else self._here(each) if isinstance(each, torch.Tensor)
                else tree_map(self._here, each) for name, each in kwargs.items()}  # fmt: skip
        made = func(*tree_map(self._here, args), **here)
        if func is torch.ops.aten.copy_.default:
            return args[0]
        if aliases:
            # The same views there, of the same memory; what returns nothing has written to its contents.
            return func(*args, **kwargs) if func._schema.returns else None
        return tree_map(self._there, made) if makes_there else made

    def _here(self, value: Any) -> Any:
        """Returns the contents of a tensor."""
        if not isinstance(value, torch.Tensor) or value.device != DEVICE:
            return value
        place = torch.empty(0, dtype=value.dtype)
        return place.set_(self.memory(value.untyped_storage()), value.storage_offset(), value.size(), value.stride())

    def memory(self, storage: torch.UntypedStorage) -> torch.UntypedStorage:
        """Returns the memory here of memory there."""
        if storage.device != DEVICE:
            return storage
        if storage._cdata not in self.contents:
            self.contents[storage._cdata] = storage, torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        return self.contents[storage._cdata][1]

    def _there(self, value: Any) -> Any:
        """Returns a tensor with these contents."""
        if not isinstance(value, torch.Tensor):
            return value
        value = value.detach()
        made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=DEVICE)
        self._here(made).copy_(value)
        return made


@contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Lets tensors of the device have contents; nothing that is made inside is of use outside."""
    mode, address, place = _Pretended(), torch.UntypedStorage.data_ptr, torch.Tensor.data_ptr

    def data_ptr(tensor: torch.Tensor) -> int:
        offset = tensor.storage_offset() * tensor.element_size()
        return place(tensor) if tensor.device != DEVICE else address(mode.memory(tensor.untyped_storage())) + offset

    def after_making(make: Any) -> Any:
        def made(value: Any, *, device: Any = None, **named: Any) -> torch.Tensor:
            here: torch.Tensor = make(value, **named)
            return here if device is None else here.to(device)

        return made

    # Tensors of `meta` have no addresses, by which an optimizer sees that weights lie side by side, and those that are
    # made of numbers are made empty.
    with (
        patch.object(torch, "tensor", after_making(torch.tensor)),
        patch.object(torch, "as_tensor", after_making(torch.as_tensor)),
        patch.object(torch.Tensor, "data_ptr", data_ptr),
        patch.object(torch.UntypedStorage, "data_ptr", lambda storage: address(mode.memory(storage))),
        mode,
    ):
        yield DEVICE
