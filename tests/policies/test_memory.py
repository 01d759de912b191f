"""The recurrent layers are torch's own, with resets; a replay of sequences is what stepping gave."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quintain.policies.memory import GatedMemory
from quintain.policies.settings import MemorySettings

CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}
F, S, N, T = 5, 4, 3, 7


def make(kind: str) -> GatedMemory:
    memory = GatedMemory(MemorySettings(cell=kind, size=S), F, torch.Generator().manual_seed(1))  # type: ignore[arg-type]
    with torch.no_grad():
        for i, bias in enumerate((memory.input_bias, memory.state_bias)):
            bias.copy_(torch.sin(torch.arange(len(bias)) + i))
    return memory


def torchs(kind: str, memory: GatedMemory) -> nn.Module:
    cell = CELLS[kind](F, S)
    cell.load_state_dict({
        "weight_ih": memory.input_weight, "weight_hh": memory.state_weight,
        "bias_ih": memory.input_bias, "bias_hh": memory.state_bias,
    })  # fmt: skip
    return cell


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def play(kind: str, cell: nn.Module, features: torch.Tensor, state: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Runs torch's cell step by step with zeros at the start of episodes and returns the outputs [T, N, S]."""
    hidden, inner = state[:, :S].clone(), state[:, S:].clone()
    outputs = []
    for t in range(len(features)):
        hidden[first[t]], inner[first[t]] = 0.0, 0.0
        if kind == "lstm":
            hidden, inner = cell(features[t], (hidden, inner))
        else:
            hidden = cell(features[t], hidden)
        outputs.append(hidden)
        hidden, inner = hidden.clone(), inner.clone()
    return torch.stack(outputs)


@pytest.mark.parametrize("kind", CELLS)
def test_one_step_is_that_of_torchs_cell(kind: str) -> None:
    memory = make(kind)
    features, state = numbers(N, F), numbers(N, memory.state_size, seed=1)
    output, after = memory.step(features, state, torch.zeros(N, dtype=torch.bool))
    cell = torchs(kind, memory)
    if kind == "lstm":
        expected = torch.cat(cell(features, (state[:, :S], state[:, S:])), dim=1)
    else:
        expected = cell(features, state)
    torch.testing.assert_close(after, expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(output, after[:, :S])


@pytest.mark.parametrize("kind", CELLS)
def test_a_lane_that_begins_an_episode_has_forgotten_everything(kind: str) -> None:
    memory, features = make(kind), numbers(N, F)
    state = numbers(N, memory.state_size, seed=1)
    first = torch.tensor([False, True, False])
    _, after = memory.step(features, state, first)
    _, fresh = memory.step(features, torch.zeros_like(state), torch.zeros(N, dtype=torch.bool))
    _, kept = memory.step(features, state, torch.zeros(N, dtype=torch.bool))
    assert torch.equal(after[1], fresh[1])
    assert torch.equal(after[[0, 2]], kept[[0, 2]])
    assert not torch.equal(kept[1], fresh[1])


@pytest.mark.parametrize("kind", CELLS)
def test_a_replay_with_resets_is_torchs_and_so_are_its_gradients(kind: str) -> None:
    memory = make(kind)
    features, state = numbers(T, N, F), numbers(N, memory.state_size, seed=1)
    first = torch.zeros(T, N, dtype=torch.bool)
    first[0, 0] = first[3, 1] = first[4, 1] = first[T - 1, 2] = True
    outputs = memory.replay(features.flatten(0, 1), state, first.flatten())
    cell = torchs(kind, memory)
    expected = play(kind, cell, features, state, first)
    torch.testing.assert_close(outputs.view(T, N, S), expected, atol=1e-6, rtol=1e-5)
    outputs.square().sum().backward()
    expected.square().sum().backward()
    for ours, theirs in zip(memory.parameters(), cell.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", CELLS)
def test_stepping_and_replaying_give_the_same_numbers(kind: str) -> None:
    memory = make(kind)
    features, state = numbers(T, N, F), numbers(N, memory.state_size, seed=1)
    first = numbers(T, N, seed=2) > 0.8
    replayed = memory.replay(features.flatten(0, 1), state, first.flatten()).view(T, N, S)
    for t in range(T):
        output, state = memory.step(features[t], state, first[t])
        torch.testing.assert_close(output, replayed[t], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", CELLS)
def test_gates_start_orthogonal(kind: str) -> None:
    settings = MemorySettings(cell=kind, size=S)  # type: ignore[arg-type]
    memory = GatedMemory(settings, 16, torch.Generator().manual_seed(1))
    for gate in range(4 if kind == "lstm" else 3):
        rows = slice(gate * S, (gate + 1) * S)
        torch.testing.assert_close(memory.input_weight[rows] @ memory.input_weight[rows].T, 2 * torch.eye(S))
        torch.testing.assert_close(memory.state_weight[rows] @ memory.state_weight[rows].T, torch.eye(S))
    assert not memory.input_bias.any()
    assert not memory.state_bias.any()
