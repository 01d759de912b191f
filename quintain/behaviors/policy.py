"""The policy of a behaviour with ML-Agents' names, around one of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from quintain.policies.base import Policy as CorePolicy

if TYPE_CHECKING:
    from quintain.typing import Array


class Policy:
    """Acts for the agents of one behaviour, and counts their steps."""

    def __init__(self, core: CorePolicy, behavior_id: str = "", behavior_spec: Any = None) -> None:
        self.core = core
        self.behavior_id = behavior_id
        self.behavior_spec = behavior_spec
        self._step = 0

    def increment_step(self, n_steps: int) -> int:
        """Counts steps of agents and returns the total."""
        self._step += n_steps
        return self._step

    def get_current_step(self) -> int:
        return self._step

    def set_step(self, step: int) -> int:
        self._step = step
        return step

    def get_weights(self) -> list[Array]:
        """Returns copies of all weights and statistics."""
        return [value.detach().cpu().numpy().copy() for value in self.core.state_dict().values()]

    def load_weights(self, weights: list[Array]) -> None:
        """Loads weights as returned by `get_weights`."""
        own = self.core.state_dict()
        if len(own) != len(weights):
            raise ValueError(f"{len(weights)} arrays were given, and the policy has {len(own)}")
        with torch.no_grad():
            for value, given in zip(own.values(), weights, strict=True):
                value.copy_(torch.from_numpy(given))

    def get_modules(self) -> dict[str, Any]:
        return {"Policy": self.core}
