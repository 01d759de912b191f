"""Recurrent layers with resets. One cell function serves acting and learning, so that a replay repeats the rollout."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from quintain.errors import SpecMismatch
from quintain.policies.normalizer import FirstLayer


class Memory(nn.Module):
    """An LSTM or GRU layer whose hidden state is one flat tensor [N, state_size], zero at the start of an episode."""

    def __init__(self, kind: str, input_size: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.kind = kind
        self.size = size
        self.state_size = 2 * size if kind == "lstm" else size
        num_gates = 4 if kind == "lstm" else 3
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
        """The layer that reads features."""
        return FirstLayer(self.input_weight, self.input_bias)

    def step(self, features: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        """Returns the hidden state after one step; `first [N]` says which lanes begin an episode, None means none."""
        return self._next(functional.linear(features, self.input_weight, self.input_bias), state, first)

    def replay(self, features: torch.Tensor, state: torch.Tensor | None, first: torch.Tensor | None) -> torch.Tensor:
        """Runs sequences: time-major features [T*n, F] from the hidden state [n, S]; returns [T*n, size]."""
        if state is None or first is None:
            raise SpecMismatch(
                "evaluate_actions() of a policy with memory got single steps; give it whole sequences, with "
                "policy_state and first, or leave policy.memory out"
            )
        lanes = len(state)
        # The inputs' part of all steps at once: only the recurrent part has to wait for the step before.
        inputs = functional.linear(features, self.input_weight, self.input_bias)
        inputs = inputs.view(-1, lanes, inputs.shape[1])
        firsts = first.view(-1, lanes)
        outputs = []
        for t in range(len(inputs)):
            state = self._next(inputs[t], state, firsts[t])
            outputs.append(self.output(state))
        return torch.cat(outputs)

    def output(self, state: torch.Tensor) -> torch.Tensor:
        """Returns the output part of the hidden state."""
        return state[:, : self.size]

    def _next(self, inputs: torch.Tensor, state: torch.Tensor, first: torch.Tensor | None) -> torch.Tensor:
        if first is not None:
            state = state.masked_fill(first.unsqueeze(1), 0.0)
        hidden = self.output(state)
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
