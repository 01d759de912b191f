"""A policy's acting by compiled kernels: the same numbers to rounding, without a tensor operation per layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.compiled.act import FEW_ROWS, act
from quintain.compiled.tables import NUM_INPUTS, ActingScratch, Observed, Step
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BoxSpec, LeafSpec, leaves
from quintain.optimizer import flat_memory
from quintain.policies.kernel_tables import num_outputs, num_units, tables_of, tile_size, widest_layer

if TYPE_CHECKING:
    from quintain.policies.encoders import Encoder
    from quintain.policies.kernel_tables import KernelPolicy
    from quintain.typing import Array

_NOTHING = np.zeros(0, np.float32)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


class CompiledActing:
    """Acts for a policy and values for it; it only reads the policy."""

    def __init__(self, policy: KernelPolicy) -> None:
        self.parameters = list(policy.parameters())
        self.encoders = policy.encoders
        self.tables = tables_of(policy)
        self.actions = ActionColumns(leaves(policy.spec.action, f.ACTION))
        self.bounds = {
            name: leaf.bounds()
            for name, leaf in leaves(policy.spec.action, f.ACTION).items()
            if isinstance(leaf, BoxSpec)
        }
        self.scratch: dict[int, ActingScratch] = {}
        self.address = 0
        self.flat = _NOTHING

    def act(self, slot: Slot, *, deterministic: bool) -> None:
        """Reads obs and noise of one step and writes action, log-probability and value into the same slot."""
        arrays = slot.arrays
        choices, numbers = self.actions.views(arrays)
        noise = arrays[f.NOISE]
        allowed = arrays.get(f.ACTION_MASK)
        if allowed is None:
            allowed = np.zeros((len(noise), 0), np.bool_)
        components = arrays.get(f.COMPONENTS)
        if components is None:
            components = np.zeros((len(noise), 0), np.float32)
        step = Step(noise, allowed, choices, numbers, components, arrays[f.LOG_PROB], arrays[f.VALUE])
        act(self.tables, self._parameters(), self._seen(slot), step, deterministic, self._scratch(len(noise)))
        self.actions.write_back(choices, numbers, arrays)

    def squashed_actions(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Returns the leaves of a step's action with numbers squashed into their bounds, as the heads do it."""
        actions = {name: slot.leaves[name] for name in self.actions.choices}
        for name, (low, high) in self.bounds.items():
            numbers = np.tanh(slot.arrays[name])
            actions[name] = torch.from_numpy(low + _HALF * (numbers + _ONE) * (high - low))
        return actions

    def values(self, obs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns the critic's value of observations, by field name."""
        rows = np.ascontiguousarray(self.encoders[1](obs).numpy())
        value = np.empty(len(rows), np.float32)
        nobody = Observed(np.zeros((0, self.tables.actor[0, NUM_INPUTS]), np.float32), _NOTHING, _NOTHING, 0.0)
        seen = nobody, Observed(rows, _NOTHING, _NOTHING, 0.0)
        act(self.tables, self._parameters(), seen, _no_action(value), False, self._scratch(len(rows)))
        return torch.from_numpy(value)

    def _parameters(self) -> Array:
        # Whoever moved the parameters to other memory moved the first one too.
        if self.parameters[0].data_ptr() != self.address:
            self.flat = flat_memory(self.parameters).numpy()
            self.address = self.parameters[0].data_ptr()
        return self.flat

    def _scratch(self, num_rows: int) -> ActingScratch:
        scratch = self.scratch.get(num_rows)
        if scratch is None:
            tables, size = self.tables, tile_size(num_rows)
            scratch = ActingScratch(
                *(
                    np.zeros(shape, np.float32)
                    for shape in (
                        (4, FEW_ROWS * widest_layer(tables)),
                        (num_units(tables), size),
                        (num_units(tables), size),
                        (num_outputs(tables), num_rows),
                    )
                )
            )
            # Truncated episodes are valued in numbers that never come again.
            self.scratch = {num_rows: scratch} if len(self.scratch) > 4 else {**self.scratch, num_rows: scratch}
        return scratch

    def _seen(self, slot: Slot) -> tuple[Observed, Observed]:
        for_actor = _observed(self.encoders[0], slot)
        return for_actor, for_actor if self.encoders[1] is self.encoders[0] else _observed(self.encoders[1], slot)


def _observed(encoder: Encoder, slot: Slot) -> Observed:
    """Returns what a network sees; a single array of floats is scaled by the kernel, anything else by the encoder."""
    if encoder.is_plain:
        (name,) = encoder.numbers
        rows = slot.arrays[name]
        if rows.dtype == np.float32:
            rows = rows if rows.ndim == 2 else rows.reshape(len(rows), -1)
            scaling = encoder.normalizer
            if scaling is None:
                return Observed(rows, _NOTHING, _NOTHING, 0.0)
            return Observed(rows, scaling.shift.numpy(), scaling.scale.numpy(), scaling.clip)
    return Observed(encoder(slot.leaves).numpy(), _NOTHING, _NOTHING, 0.0)


def _no_action(value: Array) -> Step:
    """Returns a step of no lanes that values are written to."""
    columns = np.zeros((0, 0), np.float32)
    return Step(columns, columns.astype(np.bool_), columns.astype(np.int64), columns, columns, _NOTHING, value)


class ActionColumns:
    """Shows an action of any leaves as choices [N, C] and numbers [N, M], in the order of the leaves."""

    def __init__(self, specs: Mapping[str, LeafSpec]) -> None:
        self.choices = [name for name, leaf in specs.items() if not isinstance(leaf, BoxSpec)]
        self.numbers = [name for name, leaf in specs.items() if isinstance(leaf, BoxSpec)]
        self.needs_copies = max(len(self.choices), len(self.numbers)) > 1

    def views(self, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
        """Returns the columns: views, or copies where several leaves of a kind stand side by side."""
        return _columns(self.choices, arrays, np.int64), _columns(self.numbers, arrays, np.float32)

    def write_back(self, choices: Array, numbers: Array, arrays: Mapping[str, Array]) -> None:
        """Copies to the leaves what was written into columns that are not views."""
        if not self.needs_copies:
            return
        for names, columns in ((self.choices, choices), (self.numbers, numbers)):
            first = 0
            for name in names:
                rows = arrays[name].reshape(len(columns), -1)
                rows[...] = columns[:, first : first + rows.shape[1]]
                first += rows.shape[1]


def _columns(names: list[str], arrays: Mapping[str, Array], dtype: type) -> Array:
    if len(names) == 1:
        rows = arrays[names[0]]
        return rows if rows.ndim == 2 else rows.reshape(len(rows), -1)
    num_rows = len(arrays[f.LOG_PROB])
    parts = [arrays[name].reshape(num_rows, -1) for name in names]
    return np.concatenate(parts, axis=1) if parts else np.zeros((num_rows, 0), dtype)
