"""Compiled acting of a policy: equal up to rounding, without a tensor operation per layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.compiled.kernels.act import FEW_ROWS, act
from quintain.compiled.kernels.images import see
from quintain.compiled.kernels.memory import BLOCK, remember
from quintain.compiled.kernels.tables import (
    MEMORY_SIZE,
    NUM_FEATURES,
    NUM_FILTERS,
    NUM_GATES,
    NUM_INPUTS,
    ActingScratch,
    MemoryTables,
    Observed,
    Step,
)
from quintain.compiled.policy_tables import (
    KernelWeights,
    aligned_zeros,
    image_table_of,
    memory_tables_of,
    num_outputs,
    num_units,
    tables_of,
    tile_size,
    widest_image,
    widest_layer,
)
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BoxSpec, LeafSpec, leaves

if TYPE_CHECKING:
    from quintain.compiled.policy_tables import KernelPolicy
    from quintain.compiled.runtime.kernel import Call
    from quintain.policies.encoders import Encoder
    from quintain.typing import Array

_NOTHING = np.zeros(0, np.float32)
_HALF, _ONE = np.float32(0.5), np.float32(1.0)


class CompiledActing:
    """Computes actions and values of a policy, which it only reads."""

    def __init__(self, policy: KernelPolicy) -> None:
        self.weights = KernelWeights(policy)
        self.encoders = policy.encoders
        self.tables = tables_of(policy)
        self.image_tables = {
            encoder: [image_table_of(policy, image) for image in encoder.named_images.values()]
            for encoder in self.encoders
        }
        self.memory = memory_tables_of(policy)
        self.state_size = policy.state_size
        self.actions = ActionColumns(leaves(policy.spec.action, f.ACTION))
        self.bounds = {
            name: leaf.bounds()
            for name, leaf in leaves(policy.spec.action, f.ACTION).items()
            if isinstance(leaf, BoxSpec)
        }
        self.scratch: dict[int, ActingScratch] = {}
        self.recalled: dict[int, Recalled] = {}

    def act(self, slot: Slot, state: torch.Tensor | None, *, deterministic: bool) -> None:
        """Reads obs and noise of one time step and writes action, log-probability and value to it.

        The hidden state `state` is updated in place.
        """
        prepared: PreparedStep | None = slot.prepared
        if prepared is None or not prepared.is_for(self, deterministic):
            prepared = slot.prepared = self._prepare(slot, deterministic)
        for encoding in prepared.encodings:
            encoding.fill(slot)
        if prepared.remember is not None:
            assert state is not None, "a recurrent policy needs its hidden state"
            prepared.remember(state.numpy())
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
        scratch, flat = self._scratch(len(noise)), self.weights.array()
        seen, encodings = [], []
        for encoder in dict.fromkeys(self.encoders):
            rows = _rows_in_place(encoder, slot)
            if rows is None:
                encodings.append(Encoding(encoder, self.image_tables[encoder], flat, slot))
                seen.append(Observed(encodings[-1].rows, _NOTHING, _NOTHING, 0.0))
            else:
                seen.append(_scaled(rows, encoder))
        move = None
        if self.memory is not None:
            recalled = self._recalled(len(noise))
            move = partial(recalled.move, recalled.bind(self.memory, flat, (seen[0], seen[-1]), arrays[f.FIRST]))
            seen = recalled.observed()
        call = act.bind(self.tables, flat, (seen[0], seen[-1]), step, is_likeliest, scratch)
        return PreparedStep(self, self.weights.addresses[0], is_likeliest, move, call, encodings, choices, numbers)

    def squashed_actions(self, slot: Slot) -> dict[str, torch.Tensor]:
        """Returns the leaves of a step's action with continuous ones squashed into their bounds, as the heads do."""
        actions = {name: slot.leaves[name] for name in self.actions.choices}
        for name, (low, high) in self.bounds.items():
            numbers = np.tanh(slot.arrays[name])
            actions[name] = torch.from_numpy(low + _HALF * (numbers + _ONE) * (high - low))
        return actions

    def values(self, obs: Mapping[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        """Returns the critic's value of observations, by field name; the hidden state is not changed."""
        with torch.no_grad():
            rows = np.ascontiguousarray(self.encoders[1](obs).numpy())
        value = np.empty(len(rows), np.float32)
        nobody = Observed(np.zeros((0, self.tables.actor[0, NUM_INPUTS]), np.float32), _NOTHING, _NOTHING, 0.0)
        for_critic = Observed(rows, _NOTHING, _NOTHING, 0.0)
        if self.memory is not None:
            assert state is not None, "a recurrent policy needs its hidden state"
            memory = MemoryTables(self.memory.cell, self.memory.trunks[-1:])
            recalled = Recalled(memory, state.numpy().copy())
            recalled.bind(memory, self.weights.array(), (for_critic, for_critic), obs[f.FIRST].numpy())()
            [for_critic] = recalled.observed()
        seen = nobody, for_critic
        act(self.tables, self.weights.array(), seen, no_action(value), False, self._scratch(len(rows)))
        return torch.from_numpy(value)

    def _recalled(self, num_rows: int) -> Recalled:
        recalled = self.recalled.get(num_rows)
        if recalled is None:
            assert self.memory is not None
            recalled = Recalled(self.memory, aligned_zeros(num_rows, self.state_size))
            # As with other scratch: few sizes come again and again, many would be a leak.
            self.recalled = {num_rows: recalled} if len(self.recalled) > 4 else {**self.recalled, num_rows: recalled}
        return recalled

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


class Recalled:
    """Buffers of recurrent steps for so many lanes: the hidden state, updated in place, and the outputs."""

    def __init__(self, memory: MemoryTables, state: Array) -> None:
        trunks = memory.trunks
        widest = int(trunks[:, [NUM_FEATURES, NUM_GATES]].max())
        self.state = state
        self.outputs = aligned_zeros(len(trunks), len(state), int(trunks[0, MEMORY_SIZE]))
        self.scratch = aligned_zeros(4, BLOCK * widest)

    def bind(self, memory: MemoryTables, flat: Array, seen: tuple[Observed, Observed], first: Array) -> Call[None]:
        """Returns the bound call of one recurrent step."""
        return remember.bind(memory, flat, seen, first, self.state, self.outputs, self.scratch)

    def move(self, step: Call[None], state: Array) -> None:
        """Takes a step from `state`, in place; the kernel's own buffer stays the same from call to call."""
        np.copyto(self.state, state)
        step()
        np.copyto(state, self.state)

    def observed(self) -> list[Observed]:
        """Returns the inputs of the networks after a recurrent step."""
        return [Observed(rows, _NOTHING, _NOTHING, 0.0) for rows in self.outputs]


class Encoding:
    """The features of one step's observations: small images by kernels, the rest by torch."""

    def __init__(self, encoder: Encoder, image_tables: list[Array], flat: Array, slot: Slot) -> None:
        num_rows = len(slot.arrays[f.LOG_PROB])
        self.encoder = encoder
        self.rows = aligned_zeros(num_rows, encoder.output_size)
        self.sights: list[tuple[Array, Array, Call[None]]] = []
        """Image features, their destination, and the call that writes them."""
        images = encoder.named_images
        # The channels of a stack of frames are not evenly spaced in memory, which the kernel needs.
        if not all(image.is_small and not image.is_stack for image in images.values()):
            return
        column = encoder.output_size
        for (name, image), layers in zip(reversed(images.items()), reversed(image_tables), strict=True):
            pixels, size = slot.arrays[name], int(layers[-1, NUM_FILTERS])
            if image.is_channel_last:
                pixels = pixels.transpose(0, 3, 1, 2)
            column -= size
            features = self.rows if size == encoder.output_size else aligned_zeros(num_rows, size)
            scratch = aligned_zeros(3, widest_image(layers))
            call = see.bind(layers, flat, pixels, image.scale, features, scratch)
            self.sights.append((features, self.rows[:, column : column + size], call))

    @torch.no_grad()
    def fill(self, slot: Slot) -> None:
        """Encodes the current observations."""
        if not self.sights:
            np.copyto(self.rows, self.encoder(slot.leaves).numpy())
            return
        column = 0
        for part in self.encoder.beside_images(slot.leaves):
            self.rows[:, column : column + part.shape[1]] = part.numpy()
            column += part.shape[1]
        for features, place, write in self.sights:
            write()
            if features is not self.rows:
                np.copyto(place, features)


@dataclass(frozen=True, slots=True)
class PreparedStep:
    """Buffers and calls for acting at one time step, made once: memory does not move between rollouts."""

    acting: CompiledActing
    address: int
    is_likeliest: bool
    remember: Callable[[Array], None] | None
    """Takes the recurrent step, in place; the networks then read its outputs."""
    call: Call[None]
    encodings: list[Encoding]
    """Encodings to compute before the kernel."""
    choices: Array
    numbers: Array

    def is_for(self, acting: CompiledActing, is_likeliest: bool) -> bool:
        """Whether these buffers are still valid."""
        is_in_place = acting.weights.is_at(self.address)
        return self.acting is acting and self.is_likeliest is is_likeliest and is_in_place


def _rows_in_place(encoder: Encoder, slot: Slot) -> Array | None:
    """Returns the observation if the kernel itself can normalize it: a single float array."""
    if not encoder.is_plain:
        return None
    (name,) = encoder.continuous
    rows = slot.arrays[name]
    if rows.dtype != np.float32:
        return None
    return rows if rows.ndim == 2 else rows.reshape(len(rows), -1)


def _scaled(rows: Array, encoder: Encoder) -> Observed:
    """Returns the input of a network whose observations the kernel normalizes."""
    scaling = encoder.normalizer
    if scaling is None:
        return Observed(rows, _NOTHING, _NOTHING, 0.0)
    return Observed(rows, scaling.shift.numpy(), scaling.scale.numpy(), scaling.clip)


def no_action(value: Array) -> Step:
    """Returns a step without lanes, for values only."""
    columns = np.zeros((0, 0), np.float32)
    return Step(columns, columns.astype(np.bool_), columns.astype(np.int64), columns, columns, _NOTHING, value)


class ActionColumns:
    """An action of any leaves as discrete [N, C] and continuous [N, M] columns, in the order of the leaves."""

    def __init__(self, specs: Mapping[str, LeafSpec]) -> None:
        self.choices = [name for name, leaf in specs.items() if not isinstance(leaf, BoxSpec)]
        self.numbers = [name for name, leaf in specs.items() if isinstance(leaf, BoxSpec)]
        self.needs_copies = max(len(self.choices), len(self.numbers)) > 1

    def views(self, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
        """Returns the columns: views, or copies where several leaves of a kind are concatenated."""
        return _columns(self.choices, arrays, np.int64), _columns(self.numbers, arrays, np.float32)

    def write_back(self, choices: Array, numbers: Array, arrays: Mapping[str, Array]) -> None:
        """Copies columns that are not views back to the leaves."""
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
