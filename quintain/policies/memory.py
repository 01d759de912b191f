"""Layers with a hidden state and resets. One function serves acting and learning, so that a replay repeats the rollout.

Learning replays sequences in chunks. The hidden state is carried from chunk to chunk; gradients end at the borders
(truncated backpropagation through time).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from quintain.errors import SpecMismatch
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
        inputs = self._read(features)
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
        inputs = self._read(features)
        inputs = inputs.view(-1, lanes, inputs.shape[1])
        firsts = first.view(-1, lanes)
        starts = chunk_starts(len(inputs), self.context_length, self.burn_in)
        outputs = []
        for start, stop in pairwise(sorted({0, *starts, len(inputs)})):
            output, state = self.run(inputs[start:stop], state.detach(), firsts[start:stop])
            outputs.append(output)
        return torch.cat(outputs)

    def _read(self, features: torch.Tensor) -> torch.Tensor:
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
