"""A policy's acting by compiled kernels: the same numbers to rounding, without a tensor operation per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.compiled.act import FEW_ROWS, act
from quintain.compiled.tables import NUM_INPUTS, ActingScratch, Observed, Step
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BoxSpec, LeafSpec, leaves
from quintain.optimizer import flat_memory
from quintain.policies.kernel_tables import aligned_zeros, num_outputs, num_units, tables_of, tile_size, widest_layer

if TYPE_CHECKING:
    from quintain.compiled.kernel import Call
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
        prepared: PreparedStep | None = slot.prepared
        if prepared is None or not prepared.is_for(self, deterministic):
            prepared = slot.prepared = self._prepare(slot, deterministic)
        for encoder, rows in prepared.encoded:
            np.copyto(rows, encoder(slot.leaves).numpy())
        prepared.call()
        self.actions.write_back(prepared.choices, prepared.numbers, slot.arrays)

    def _prepare(self, slot: Slot, is_likeliest: bool) -> PreparedStep:
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
        seen = [_observed(encoder, slot) for encoder in dict.fromkeys(self.encoders)]
        encoded = [
            (encoder, observed.rows)
            for encoder, observed in zip(dict.fromkeys(self.encoders), seen, strict=True)
            if _rows_in_place(encoder, slot) is None
        ]
        scratch = self._scratch(len(noise))
        call = act.bind(self.tables, self._parameters(), (seen[0], seen[-1]), step, is_likeliest, scratch)
        return PreparedStep(self, self.address, is_likeliest, call, encoded, choices, numbers)

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
                    aligned_zeros(*shape)
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


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """Acting on one slot, laid out once: memory does not move between rollouts."""

    acting: CompiledActing
    address: int
    is_likeliest: bool
    call: Call[None]
    encoded: list[tuple[Encoder, Array]]
    """What must be encoded before the kernel sees it, and where it looks."""
    choices: Array
    numbers: Array

    def is_for(self, acting: CompiledActing, is_likeliest: bool) -> bool:
        """Says whether this is still what would be prepared."""
        # Whoever moved the parameters to other memory moved the first one too.
        is_in_place = acting.parameters[0].data_ptr() == self.address
        return self.acting is acting and self.is_likeliest is is_likeliest and is_in_place


def _rows_in_place(encoder: Encoder, slot: Slot) -> Array | None:
    """Returns what was observed where the kernel itself can scale it: a single array of floats."""
    if not encoder.is_plain:
        return None
    (name,) = encoder.numbers
    rows = slot.arrays[name]
    if rows.dtype != np.float32:
        return None
    return rows if rows.ndim == 2 else rows.reshape(len(rows), -1)


def _observed(encoder: Encoder, slot: Slot) -> Observed:
    """Returns what a network sees; what the kernel cannot read in place is encoded into memory of its own."""
    rows, scaling = _rows_in_place(encoder, slot), encoder.normalizer
    if rows is None:
        return Observed(encoder(slot.leaves).numpy().copy(), _NOTHING, _NOTHING, 0.0)
    if scaling is None:
        return Observed(rows, _NOTHING, _NOTHING, 0.0)
    return Observed(rows, scaling.shift.numpy(), scaling.scale.numpy(), scaling.clip)


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
