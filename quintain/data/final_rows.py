"""The true last observations of the episodes that ended in a block: few rows, stored separately."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch

from quintain.core.state import copy_into, require_shapes

if TYPE_CHECKING:
    from quintain.typing import Array, State, Values


class FinalRows:
    """Rows that are added as episodes end, with the policy's hidden state if it has one."""

    def __init__(
        self,
        like: Mapping[str, torch.Tensor],
        state_size: int,
        capacity: int,
        new: Callable[[tuple[int, ...], torch.dtype], torch.Tensor],
    ) -> None:
        """Allocates rows of the fields `like` [T+1, N, ...]; the capacity doubles when it is exceeded."""
        self.count = self.start = 0
        self.rows = {name: new((capacity, *field.shape[2:]), field.dtype) for name, field in like.items()}
        self.rows["policy_state"] = new((capacity, state_size), torch.float32)

    def region(self, start: int) -> FinalRows:
        """Returns the rows from `start` on, with their own count, in the same memory: one region for each writer."""
        region = copy.copy(self)
        region.start, region.count = start, 0
        return region

    def clear(self) -> None:
        self.count = 0

    def add(self, rows: Mapping[str, Values], state: torch.Tensor) -> torch.Tensor:
        """Copies rows in and returns their indices."""
        values = {name: torch.as_tensor(value) for name, value in rows.items()}
        start = self.start + self.count
        end = start + len(next(iter(values.values())))
        self._make_room(end)
        for name, value in values.items():
            self.rows[name][start:end].copy_(value)
        self.rows["policy_state"][start:end].copy_(state)
        self.count = end - self.start
        return torch.arange(start, end, dtype=torch.int32, device=self.rows["policy_state"].device)

    def take(self, places: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the rows at the given indices, by field name; the hidden state is under `policy_state`."""
        return {name: rows[places] for name, rows in self.rows.items()}

    def array(self, name: str) -> Array:
        """Returns the added rows of one field, on the CPU, in order."""
        return self.rows[name][self.start : self.start + self.count].cpu().numpy()

    def _make_room(self, needed: int) -> None:
        capacity = len(self.rows["policy_state"])
        if needed <= capacity:
            return
        # Growing happens while acting; what is made in inference mode could never take part in learning.
        with torch.inference_mode(False):
            for name, rows in self.rows.items():
                grown = rows.new_zeros((max(needed, 2 * capacity), *rows.shape[1:]))
                grown[: self.count] = rows[: self.count]
                self.rows[name] = grown

    def contents(self) -> State:
        """Returns the added rows, as views."""
        return {name: rows[self.start : self.start + self.count] for name, rows in self.rows.items()}

    def state_dict(self) -> State:
        return {name: rows.clone() for name, rows in self.contents().items()}

    def require_rows(self, state: State) -> int:
        """Refuses saved rows with other names or shapes; returns their number."""
        count = len(state["policy_state"])
        for name, rows in self.rows.items():
            require_shapes(f"final.{name}", state[name], rows[:1].expand(count, *rows.shape[1:]))
        return count

    def load_state_dict(self, state: State) -> None:
        count = self.require_rows(state)
        self.count = 0
        self._make_room(self.start + count)
        for name, rows in self.rows.items():
            copy_into(rows[self.start : self.start + count], state[name])
        self.count = count
