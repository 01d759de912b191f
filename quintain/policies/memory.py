"""Layers with a hidden state and resets. One function serves acting and learning, so that a replay repeats the rollout.

Learning replays sequences in chunks. The hidden state is carried from chunk to chunk; gradients end at the borders
(truncated backpropagation through time).

An LSTM and a GRU are recurrent. A transformer has causal attention over the last steps of the same episode. Its hidden
state is a cache: the inputs that each layer had in the last `window - 1` steps (as Transformer-XL, Dai et al. 2019),
and how many of them belong to the episode. Positions are relative, by a learned bias for each age (as T5, Raffel et al.
2020), so that a step of acting and a replay of a whole sequence compute the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from quintain.errors import SpecMismatch
from quintain.policies.networks import linear
from quintain.policies.normalizer import FirstLayer
from quintain.policies.settings import MemorySettings


class Memory(nn.Module, ABC):
    """A layer whose hidden state is one flat tensor [N, state_size], zero at the start of an episode."""

    def __init__(self, settings: MemorySettings, state_size: int) -> None:
        super().__init__()
        self.kind = settings.cell
        self.size = settings.size
        self.context_length = settings.context_length
        self.burn_in = settings.burn_in
        self.state_size = state_size

    @property
    @abstractmethod
    def first_layer(self) -> FirstLayer:
        """The layer that reads features."""

    @abstractmethod
    def run(
        self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs some steps: outputs of `first_layer` [T, n, K]; returns outputs [T * n, size] and the next hidden state.

        `first [T, n]` says which steps begin an episode, None means none.
        """

    def step(
        self, features: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns outputs [N, size] and hidden state after one step; `first [N]` says which lanes begin an episode."""
        inputs = self.read(features)
        return self.run(inputs.unsqueeze(0), state, None if first is None else first.unsqueeze(0))

    def replay(self, features: torch.Tensor, state: torch.Tensor | None, first: torch.Tensor | None) -> torch.Tensor:
        """Runs sequences: time-major features [T*n, F] from the hidden state [n, S]; returns [T*n, size]."""
        if state is None or first is None:
            raise SpecMismatch(
                "evaluate_actions() of a policy with memory got single steps; give it whole sequences, with "
                "policy_state and first, or leave policy.memory out"
            )
        lanes = len(state)
        # The inputs' part of all steps at once: only the rest has to wait for the step before.
        inputs = self.read(features)
        inputs = inputs.view(-1, lanes, inputs.shape[1])
        firsts = first.view(-1, lanes)
        starts = chunk_starts(len(inputs), self.context_length, self.burn_in)
        outputs = []
        for start, stop in pairwise(sorted({0, *starts, len(inputs)})):
            output, state = self.run(inputs[start:stop], state.detach(), firsts[start:stop])
            outputs.append(output)
        return torch.cat(outputs)

    def read(self, features: torch.Tensor) -> torch.Tensor:
        """Returns the outputs of `first_layer`."""
        layer = self.first_layer
        return functional.linear(features, layer.weight, layer.bias)


def chunk_starts(num_steps: int, context_length: int | None, burn_in: int) -> range:
    """Returns the steps of a sequence before which gradients end: after the burn-in, then every `context_length` steps.

    >>> list(chunk_starts(10, context_length=4, burn_in=1))
    [1, 5, 9]
    """
    return range(burn_in, num_steps, context_length or num_steps)


class GatedMemory(Memory):
    """An LSTM or GRU layer."""

    def __init__(self, settings: MemorySettings, input_size: int, generator: torch.Generator) -> None:
        size, is_lstm = settings.size, settings.cell == "lstm"
        super().__init__(settings, 2 * size if is_lstm else size)
        num_gates = 4 if is_lstm else 3
        self.input_weight = nn.Parameter(torch.empty(num_gates * size, input_size))
        self.state_weight = nn.Parameter(torch.empty(num_gates * size, size))
        self.input_bias = nn.Parameter(torch.zeros(num_gates * size))
        self.state_bias = nn.Parameter(torch.zeros(num_gates * size))
        for gate in range(num_gates):
            rows = slice(gate * size, (gate + 1) * size)
            nn.init.orthogonal_(self.input_weight.data[rows], math.sqrt(2.0), generator=generator)
            nn.init.orthogonal_(self.state_weight.data[rows], 1.0, generator=generator)

    @property
    def first_layer(self) -> FirstLayer:
        return FirstLayer(self.input_weight, self.input_bias)

    def run(
        self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = []
        for t in range(len(inputs)):
            state = self._next(inputs[t], state, None if first is None else first[t])
            outputs.append(state[:, : self.size])
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs), state

    def _next(self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        if first is not None:
            state = state.masked_fill(first.unsqueeze(1), 0.0)
        hidden = state[:, : self.size]
        recurrent = functional.linear(hidden, self.state_weight, self.state_bias)
        if self.kind == "lstm":
            enter, forget, candidate, leave = (inputs + recurrent).chunk(4, dim=1)
            cell = torch.sigmoid(forget) * state[:, self.size :] + torch.sigmoid(enter) * torch.tanh(candidate)
            return torch.cat((torch.sigmoid(leave) * torch.tanh(cell), cell), dim=1)
        input_reset, input_update, input_new = inputs.chunk(3, dim=1)
        state_reset, state_update, state_new = recurrent.chunk(3, dim=1)
        update = torch.sigmoid(input_update + state_update)
        new = torch.tanh(input_new + torch.sigmoid(input_reset + state_reset) * state_new)
        return (1.0 - update) * new + update * hidden


class Reach(NamedTuple):
    """Which keys each of T queries attends to; there are K = window - 1 + T keys, in the order of time."""

    age: torch.Tensor
    """[T, K] how many steps the key is older than the query, within 0 and window - 1."""
    hidden: torch.Tensor
    """[n, 1, T, K] whether the key is later, beyond the window or of another episode."""


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a layer norm and beside a residual connection (pre-norm)."""

    def __init__(self, size: int, num_heads: int, window: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.size = size
        self.num_heads = num_heads
        self.query = linear(size, size, 1.0, generator)
        self.key_value = linear(size, 2 * size, 1.0, generator)
        self.age_bias = nn.Parameter(torch.zeros(num_heads, window))
        self.answer = linear(size, size, gain, generator)
        self.widen = linear(size, 2 * size, math.sqrt(2.0), generator)
        self.narrow = linear(2 * size, size, gain, generator)

    def forward(self, inputs: torch.Tensor, seen: torch.Tensor, reach: Reach) -> torch.Tensor:
        """Returns outputs [n, T, D] of inputs [n, T, D] that attend to what was seen [n, K, D], themselves included."""
        keys, values = self._heads(self.key_value(functional.layer_norm(seen, (self.size,)))).chunk(2, dim=3)
        queries = self._heads(self.query(functional.layer_norm(inputs, (self.size,))))
        scores = queries @ keys.transpose(2, 3) / math.sqrt(self.size / self.num_heads) + self.age_bias[:, reach.age]
        found = scores.masked_fill(reach.hidden, -math.inf).softmax(dim=3) @ values
        outputs: torch.Tensor = inputs + self.answer(found.transpose(1, 2).flatten(2))
        wide = functional.silu(self.widen(functional.layer_norm(outputs, (self.size,))))
        fed: torch.Tensor = self.narrow(wide)
        return outputs + fed

    def _heads(self, rows: torch.Tensor) -> torch.Tensor:
        """Returns rows [n, K, C] by heads, [n, heads, K, C / heads]."""
        return rows.view(*rows.shape[:2], self.num_heads, -1).transpose(1, 2)


class AttentionMemory(Memory):
    """A transformer of one or more blocks over a window."""

    def __init__(self, settings: MemorySettings, input_size: int, generator: torch.Generator) -> None:
        size, window, num_layers, num_heads = settings.size, settings.window, settings.num_layers, settings.num_heads
        assert window is not None, "a transformer's settings are complete"
        assert num_layers is not None
        assert num_heads is not None
        super().__init__(settings, num_layers * (window - 1) * size + 1)
        self.window = window
        self.embed = linear(input_size, size, math.sqrt(2.0), generator)
        # Residuals of all layers together begin about as large as the inputs.
        gain = 1.0 / math.sqrt(2 * num_layers)
        self.blocks = nn.ModuleList(Block(size, num_heads, window, gain, generator) for _ in range(num_layers))

    @property
    def first_layer(self) -> FirstLayer:
        return FirstLayer(self.embed.weight, self.embed.bias)

    def run(
        self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        outputs = []
        # A piece is as long as the window: longer ones would have more scores that are hidden than scores that count.
        for start in range(0, len(inputs), self.window):
            part = slice(start, start + self.window)
            output, state = self._attend(inputs[part].transpose(0, 1), state, None if first is None else first[part].T)
            outputs.append(output.transpose(0, 1).flatten(0, 1))
        return torch.cat(outputs), state

    def _attend(
        self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs steps [n, T, D] together; `first` is [n, T]."""
        cached = state[:, :-1].reshape(-1, len(self.blocks), self.window - 1, self.size)
        # As a plain integer, also for an exporter that traces shapes.
        places = torch.arange(int(inputs.shape[1]), device=state.device)
        so_far = _steps_so_far(state[:, -1:], places, first)
        reach = self._reach(so_far, places)
        kept = []
        for i, block in enumerate(self.blocks):
            seen = torch.cat((cached[:, i], inputs), dim=1)
            kept.append(seen[:, 1 - self.window :])
            inputs = block(inputs, seen, reach)
        num_kept = (so_far[:, -1:] + 1.0).clamp(max=self.window - 1)
        age = torch.arange(self.window - 1, 0, -1, device=state.device)
        # Of other episodes nothing is kept, not even hidden.
        kept_inputs = torch.stack(kept, dim=1) * (age <= num_kept)[:, None, :, None]
        return functional.layer_norm(inputs, (self.size,)), torch.cat((kept_inputs.flatten(1), num_kept), dim=1)

    def _reach(self, so_far: torch.Tensor, places: torch.Tensor) -> Reach:
        keys = torch.arange(1 - self.window, len(places), device=places.device)
        age = places.unsqueeze(1) - keys
        # Every step attends to itself, whatever state an exported policy is given.
        oldest = so_far.clamp(0, self.window - 1).unsqueeze(2)
        hidden = (age < 0) | (age > oldest)
        return Reach(age.clamp(0, self.window - 1), hidden.unsqueeze(1))


def _steps_so_far(num_kept: torch.Tensor, places: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
    """Returns for each of the steps `places` [T] of n lanes how many earlier ones of its episode there are, [n, T].

    `num_kept` [n, 1] of them were before all of these.
    """
    since = places + num_kept
    if first is None:
        return since
    # The last beginning at or before each step, or -1; [n, T, T] of which the last axis are the beginnings.
    begun = first.unsqueeze(1) & (places <= places.unsqueeze(1))
    last = torch.where(begun, places, -1).amax(dim=2)
    return torch.where(last >= 0, (places - last).to(since.dtype), since)


def make_memory(settings: MemorySettings, input_size: int, generator: torch.Generator) -> Memory:
    """Makes the memory of a policy whose encoder has so many features."""
    return (AttentionMemory if settings.cell == "transformer" else GatedMemory)(settings, input_size, generator)
