"""The weights of a module as kernels read them: one flat array, also after parameters were replaced or moved."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from quintain.policies.flat_parameters import flat_memory, require_like

if TYPE_CHECKING:
    from quintain.typing import Array


class KernelWeights:
    """All parameters of a module in one array, which moves only if all of them are moved together."""

    def __init__(self, module: nn.Module) -> None:
        self.names, self.parameters = map(list, zip(*module.named_parameters(), strict=True))
        # Where the modules themselves keep them, so that one that was replaced is seen.
        self.held = [(part, name) for part in module.modules() for name, _ in part.named_parameters(recurse=False)]
        self.addresses: list[int] = []
        self.flat: Array = np.zeros(0, np.float32)

    def array(self) -> Array:
        """Returns the flat weights, after looking where they are."""
        now: list[nn.Parameter] = [module._parameters[name] for module, name in self.held]  # type: ignore[misc]
        if [parameter.data_ptr() for parameter in now] != self.addresses:
            for name, parameter, before in zip(self.names, now, self.parameters, strict=True):
                require_like(name, parameter, before.shape, self.parameters[0])
            self.flat = flat_memory(now).numpy()
            self.parameters, self.addresses = now, [parameter.data_ptr() for parameter in now]
        return self.flat

    def is_at(self, address: int) -> bool:
        """Whether the weights are still where the first one had this address."""
        # Whoever moved the parameters to other memory moved the first one too.
        return bool(self.parameters[0].data_ptr() == address)
