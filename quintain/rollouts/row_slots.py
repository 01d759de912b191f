"""Memory for acting on any number of rows at once."""

from __future__ import annotations

import torch

from quintain.data import fields as f
from quintain.data.fields import Declared
from quintain.data.rollout import Rollout, Slot
from quintain.data.spec import BehaviorSpec

_MAX_SIZES = 16


class RowSlots:
    """Slots of few sizes that serve all numbers of rows; rows beyond that number are padding."""

    def __init__(self, spec: BehaviorSpec, fields: Declared) -> None:
        self.spec = spec
        self.fields = fields
        self.scratch: dict[int, Rollout] = {}

    def slot(self, num_rows: int) -> Slot:
        """Returns memory for at least so many rows."""
        num_rows = rounded(num_rows)
        if num_rows not in self.scratch:
            with torch.inference_mode(False):
                made = Rollout(self.spec, self.fields, num_lanes=num_rows, num_steps=1)
            if self.spec.mask_size:
                made.storage[f.ACTION_MASK].fill_(True)
            # Few sizes come again and again; many would be a leak.
            self.scratch = {num_rows: made} if len(self.scratch) > _MAX_SIZES else {**self.scratch, num_rows: made}
        return self.scratch[num_rows].slots[0]


def rounded(num_rows: int) -> int:
    """Rounds up by at most a quarter, so that few sizes serve all counts of rows.

    >>> [rounded(n) for n in (0, 3, 9, 12, 100, 256)]
    [1, 3, 10, 12, 112, 256]
    """
    unit = 1 << max(0, num_rows.bit_length() - 3)
    return max(1, -(-num_rows // unit) * unit)
