"""The perceptron calls functions instead of modules; its numbers must be those of the nn.Sequential it stands for."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from quintain.policies.networks import Mlp, mlp

PLAIN = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU, "silu": nn.SiLU}


def make(activation: str) -> Mlp:
    generator = torch.Generator().manual_seed(3)
    return mlp(4, (16, 8), 2, activation=activation, output_gain=1.0, generator=generator)


def plain_twin(network: Mlp, activation: str) -> nn.Sequential:
    act = PLAIN[activation]
    twin = nn.Sequential(nn.Linear(4, 16), act(), nn.Linear(16, 8), act(), nn.Linear(8, 2))
    twin.load_state_dict(network.state_dict())
    return twin


@pytest.mark.parametrize("activation", PLAIN)
def test_numbers_and_gradients_are_those_of_plain_modules(activation: str) -> None:
    network = make(activation)
    twin = plain_twin(network, activation)
    obs = torch.linspace(-3.0, 3.0, 20).reshape(5, 4)
    outputs = []
    for module in (network, twin):
        output = module(obs)
        output.square().sum().backward()
        outputs.append(output)
    assert torch.equal(*outputs)
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_does_not_write_into_its_input() -> None:
    obs = torch.full((2, 4), -1.0)
    make("relu")(obs)
    assert torch.equal(obs, torch.full((2, 4), -1.0))


def test_follows_parameters_whose_memory_was_replaced() -> None:
    network = make("tanh")
    for parameter in network.parameters():
        parameter.data = torch.zeros_like(parameter)
    # Zero weights and biases give zero whatever goes in.
    assert torch.equal(network(torch.ones(1, 4)), torch.zeros(1, 2))


def test_a_copy_has_weights_of_its_own() -> None:
    network = make("tanh")
    before = network(torch.ones(1, 4)).detach().clone()
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.zero_()
    assert torch.equal(copied(torch.ones(1, 4)), torch.zeros(1, 2))
    assert torch.equal(network(torch.ones(1, 4)), before)
