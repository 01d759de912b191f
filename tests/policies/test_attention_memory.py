"""A transformer memory is attention over the last steps of the same episode, whether it steps or replays."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from quintain.policies.memory import AttentionMemory
from quintain.policies.settings import MemorySettings

F, D, N, T = 5, 8, 3, 11
WINDOW, LAYERS, HEADS = 4, 2, 2


def make(num_layers: int = LAYERS, **settings: int) -> AttentionMemory:
    shape = {"window": WINDOW, "num_layers": num_layers, "num_heads": HEADS}
    memory = AttentionMemory(
        MemorySettings(cell="transformer", size=D, **shape, **settings),  # type: ignore[arg-type]
        F,
        torch.Generator().manual_seed(1),
    )
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in memory.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return memory.double()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def beginnings() -> torch.Tensor:
    """Episodes begin at the start, twice in a row, at the last step and inside windows, in each lane elsewhere."""
    first = torch.zeros(T, N, dtype=torch.bool)
    first[0, 0] = first[3, 1] = first[4, 1] = first[T - 1, 2] = first[6, 2] = True
    return first


def normal(row: torch.Tensor) -> torch.Tensor:
    return (row - row.mean()) / (row.var(unbiased=False) + 1e-5).sqrt()


def one_step(block: nn.Module, history: list[torch.Tensor]) -> torch.Tensor:
    """Returns a layer's output at the last step of a history of rows [D]: the formulas, one head at a time."""
    width = D // HEADS
    found = []
    asked = block.query(normal(history[-1]))
    for head in range(HEADS):
        scores, values = [], []
        for age, row in enumerate(reversed(history)):
            both = block.key_value(normal(row))[2 * width * head : 2 * width * (head + 1)]
            query = asked[width * head : width * (head + 1)]
            scores.append((query * both[:width]).sum() / math.sqrt(width) + block.age_bias[head, age])
            values.append(both[width:])
        weights = torch.stack(scores).exp()
        found.append(sum(w * v for w, v in zip(weights / weights.sum(), values, strict=True)))
    after = history[-1] + block.answer(torch.cat(found))
    wide = block.widen(normal(after))
    return after + block.narrow(wide / (1.0 + (-wide).exp()))


def by_hand(memory: AttentionMemory, features: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Plays each lane by itself and each step from the list of what its episode brought, [T, N, D]."""
    lanes = []
    for lane in range(features.shape[1]):
        histories: list[list[torch.Tensor]] = [[] for _ in memory.blocks]
        outputs = []
        for t in range(len(features)):
            row = memory.embed(features[t, lane])
            for block, history in zip(memory.blocks, histories, strict=True):
                if first[t, lane]:
                    history.clear()
                history.append(row)
                row = one_step(block, history[-memory.window :])
            outputs.append(normal(row))
        lanes.append(torch.stack(outputs))
    return torch.stack(lanes, dim=1)


def stepped(memory: AttentionMemory, features: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state = torch.zeros(features.shape[1], memory.state_size, dtype=features.dtype)
    outputs = []
    for t in range(len(features)):
        output, state = memory.step(features[t], state, first[t])
        outputs.append(output)
    return torch.stack(outputs), state


@pytest.mark.parametrize("num_layers", [1, 2])
def test_steps_and_their_gradients_are_those_of_the_formulas(num_layers: int) -> None:
    memory, features, first = make(num_layers), numbers(T, N, F), beginnings()
    expected = by_hand(memory, features, first)
    torch.testing.assert_close(stepped(memory, features, first)[0], expected)
    zeros = torch.zeros(N, memory.state_size, dtype=torch.float64)
    replayed = memory.replay(features.flatten(0, 1), zeros, first.flatten()).view(T, N, D)
    torch.testing.assert_close(replayed, expected)
    weights = numbers(T, N, D, seed=4)
    parameters = list(memory.parameters())
    found = torch.autograd.grad((replayed * weights).sum(), parameters)
    for ours, theirs in zip(found, torch.autograd.grad((expected * weights).sum(), parameters), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("context_length", [None, 1, 3, 4, 5, 20])
def test_a_replay_goes_on_from_any_state_in_chunks_of_any_length(context_length: int | None) -> None:
    memory = make()
    memory.context_length = context_length
    features, first = numbers(T + 5, N, F), torch.cat((torch.zeros(5, N, dtype=torch.bool), beginnings()))
    expected, _ = stepped(memory, features, first)
    _, state = stepped(memory, features[:5], first[:5])
    replayed = memory.replay(features[5:].flatten(0, 1), state, first[5:].flatten())
    torch.testing.assert_close(replayed.view(T, N, D), expected[5:])


def test_steps_beyond_the_window_are_forgotten() -> None:
    """One layer reaches window - 1 steps back, two layers twice as far."""
    for num_layers in (1, 2):
        memory, features = make(num_layers), numbers(T, 1, F)
        nothing = torch.zeros(T, 1, dtype=torch.bool)
        features.requires_grad_()
        outputs, _ = stepped(memory, features, nothing)
        [by_input] = torch.autograd.grad(outputs[-1].square().sum(), features)
        reached = by_input.abs().sum(dim=(1, 2)) > 0
        assert reached.tolist() == [t >= T - 1 - num_layers * (WINDOW - 1) for t in range(T)]


def test_a_beginning_forgets_what_a_used_state_still_holds() -> None:
    memory, features = make(), numbers(T, N, F)
    _, used = stepped(memory, numbers(9, N, F, seed=7), torch.zeros(9, N, dtype=torch.bool))
    first = torch.zeros(T, N, dtype=torch.bool)
    first[0] = True
    fresh, _ = stepped(memory, features, first)
    replayed = memory.replay(features.flatten(0, 1), used, first.flatten()).view(T, N, D)
    torch.testing.assert_close(replayed, fresh)


def test_the_state_counts_the_steps_of_the_episode_that_it_holds() -> None:
    memory = make()
    _, state = stepped(memory, numbers(T, N, F), beginnings())
    # Lane 0 has played more steps than the window holds, lane 1 seven, and lane 2 one.
    assert state[:, -1].tolist() == [WINDOW - 1, WINDOW - 1, 1]
    assert memory.state_size == LAYERS * (WINDOW - 1) * D + 1
