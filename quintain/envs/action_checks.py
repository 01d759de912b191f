"""Validates actions before an environment receives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec, leaves
from quintain.errors import EnvError, QuintainError

if TYPE_CHECKING:
    from quintain.typing import Array


class ActionChecks:
    """Refuses continuous actions that are not finite, and discrete ones that are out of range or masked out."""

    def __init__(self, spec: BehaviorSpec, num_lanes: int, first_lane: int) -> None:
        self.leaves = leaves(spec.action, f.ACTION)
        self.numbers = first_lane + np.arange(num_lanes)
        self.columns: dict[str, Array] = {}
        """Column of each discrete action's first option in a mask."""
        self._lanes = np.arange(num_lanes)[:, None]
        width = 0
        for name, leaf in self.leaves.items():
            if not isinstance(leaf, BoxSpec):
                sizes = (leaf.n,) if isinstance(leaf, DiscreteSpec) else tuple(getattr(leaf, "nvec", ()))
                self.columns[name] = width + np.cumsum((0, *sizes[:-1]))
                width += sum(sizes)

    def refuse_impossible(
        self, name: str, values: Array, mask: Array | None, lanes: Array | slice = slice(None)
    ) -> None:
        """Raises if the action of one of these lanes is not valid; `values` and `mask` are theirs."""
        leaf = self.leaves[name]
        if isinstance(leaf, BoxSpec):
            if not np.isfinite(values).all():
                lane = int(np.argwhere(~np.isfinite(values))[0][0])
                raise EnvError(
                    f"the policy chose an action that is not finite for lane {self.numbers[lanes][lane]}: "
                    f"{values[lane]}. "
                    f"Lower learning_rate, or set normalize_obs",
                    code="E0512",
                )
            return
        if isinstance(leaf, DiscreteSpec):
            # Plain numbers: for the few lanes there are, faster than asking numpy.
            listed = values.tolist()
            is_possible = min(listed) >= 0 and max(listed) < leaf.n
        else:
            is_possible = bool(((values >= 0) & (values < leaf.nvec)).all())
        if not is_possible:
            raise QuintainError(f"the policy chose {name} {values.tolist()}, of {leaf}", code="E0101")
        if mask is not None:
            self._refuse_masked(name, values, mask, lanes)

    def _refuse_masked(self, name: str, values: Array, mask: Array, lanes: Array | slice) -> None:
        starts = self.columns[name]
        is_allowed = mask[self._lanes[: len(values)], starts + values.reshape(len(values), len(starts))].all(axis=1)
        if not is_allowed.all():
            lane = int(np.argmin(is_allowed))
            what = f"{name} {values[lane].tolist()} for lane {self.numbers[lanes][lane]}"
            raise QuintainError(f"the policy chose {what}, which the action mask forbids", code="E0101")
