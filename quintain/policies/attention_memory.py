"""A transformer memory: causal attention over the last steps of the same episode, with a cache for acting.

The hidden state is the inputs that each layer had in the last `window - 1` steps (as Transformer-XL caches, Dai et al.
2019) and how many of them belong to the episode. Positions are relative: each head adds a learned bias by age to its
scores (as T5 does, Raffel et al. 2020), so that a step of acting and a replay of a whole sequence compute the same.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from quintain.policies.memory import Memory
from quintain.policies.networks import linear
from quintain.policies.normalizer import FirstLayer
from quintain.policies.settings import MemorySettings


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
