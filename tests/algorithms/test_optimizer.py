"""Adam over flat memory takes the same steps as torch's own over separate tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from quintain.algorithms.optimizer import Optimizer
from quintain.core.process_group import SingleProcess


def network() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return layers


def data(step: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(step).standard_normal((8, 3)).astype(np.float32))


def loss_of(module: nn.Module, step: int) -> torch.Tensor:
    return module(data(step)).square().sum()


def optimizer_of(module: nn.Module, max_grad_norm: float | None = 0.5) -> Optimizer:
    return Optimizer(module.named_parameters(), eps=1e-5, max_grad_norm=max_grad_norm)


@pytest.mark.parametrize("max_grad_norm", [None, 0.5, 1e6], ids=["none", "always", "never"])
def test_steps_are_those_of_torchs_adam_with_clipping(max_grad_norm: float | None) -> None:
    ours, theirs = network(), network()
    optimizer = optimizer_of(ours, max_grad_norm)
    adam = torch.optim.Adam(theirs.parameters(), eps=1e-5)
    for step in range(20):
        learning_rate = 0.01 / (step + 1)
        norm = optimizer.step(loss_of(ours, step), learning_rate)
        adam.zero_grad()
        loss_of(theirs, step).backward()
        limit = torch.inf if max_grad_norm is None else max_grad_norm
        expected_norm = nn.utils.clip_grad_norm_(theirs.parameters(), limit)
        adam.param_groups[0]["lr"] = learning_rate
        adam.step()
        torch.testing.assert_close(norm, expected_norm, atol=0, rtol=1e-5)
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-6, rtol=0)


def test_parameters_keep_their_values_and_become_views() -> None:
    module = network()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = optimizer_of(module)
    for parameter, value in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.untyped_storage().data_ptr() == optimizer.flat.untyped_storage().data_ptr()
    assert not any(name in module.state_dict() for name in ("flat",))


def test_loading_a_module_reaches_the_optimizers_memory() -> None:
    module = network()
    optimizer = optimizer_of(module)
    module.load_state_dict({name: torch.ones_like(value) for name, value in module.state_dict().items()})
    assert (optimizer.flat == 1).all()


def test_state_is_kept_by_parameter_name() -> None:
    module = network()
    optimizer = optimizer_of(module, max_grad_norm=None)
    loss_of(module, 0).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    optimizer.step(loss_of(module, 0), 0.01)
    state = optimizer.state_dict()
    assert set(state["exp_avg"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert state["step"] == 1
    for name, gradient in gradients.items():
        # After one step the moments are (1 - 0.9) g and (1 - 0.999) g^2.
        torch.testing.assert_close(state["exp_avg"][name], 0.1 * gradient)
        torch.testing.assert_close(state["exp_avg_sq"][name], 0.001 * gradient.square(), atol=1e-7, rtol=1e-4)


def test_a_checkpoint_before_the_first_step_has_the_same_tree() -> None:
    module = network()
    optimizer = optimizer_of(module)
    before = optimizer.state_dict()
    optimizer.step(loss_of(module, 0), 0.01)
    after = optimizer.state_dict()
    assert before["step"] == 0
    assert before.keys() == after.keys()
    assert before["exp_avg"].keys() == after["exp_avg"].keys()
    assert not before["exp_avg"]["0.weight"].any()


def test_a_restored_optimizer_continues_bitwise() -> None:
    module, other = network(), network()
    optimizer, restored = optimizer_of(module), optimizer_of(other)
    for step in range(3):
        optimizer.step(loss_of(module, step), 0.01)
    other.load_state_dict(module.state_dict())
    restored.load_state_dict(optimizer.state_dict())
    for step in range(3, 6):
        optimizer.step(loss_of(module, step), 0.01)
        restored.step(loss_of(other, step), 0.01)
    assert torch.equal(optimizer.flat, restored.flat)


def test_state_for_other_parameters_is_refused() -> None:
    saved = optimizer_of(nn.Linear(2, 2)).state_dict()
    with pytest.raises(KeyError, match="optimizer state is for"):
        optimizer_of(network()).load_state_dict(saved)


def test_frozen_parameters_are_left_alone() -> None:
    module = network()
    module[0].weight.requires_grad_(False)
    frozen = module[0].weight.clone()
    optimizer = optimizer_of(module)
    optimizer.step(loss_of(module, 0), 0.1)
    assert torch.equal(module[0].weight, frozen)
    assert "0.weight" not in optimizer.state_dict()["exp_avg"]


def test_gradients_are_averaged_over_ranks_before_they_are_clipped() -> None:
    """The other rank has three times the rows and twice the gradient: (1 * g + 3 * 2 g) / 4 = 1.75 g."""
    reduced = []

    class WithAnother(SingleProcess):
        size = 2

        def average(self, values: torch.Tensor) -> None:
            reduced.append(values.numel())
            gradient, weight = values[:-1].clone(), values[-1].clone()
            values[:-1] += 6.0 * gradient
            values[-1] += 3.0 * weight
            values /= 2.0

    module, alone = network(), network()
    optimizer = Optimizer(module.named_parameters(), eps=1e-5, max_grad_norm=None, world=WithAnother())
    norm = optimizer.step(loss_of(module, 0), 0.01, weight=64)
    expected = optimizer_of(alone, None).step(loss_of(alone, 0), 0.01)
    torch.testing.assert_close(norm, 1.75 * expected)
    assert reduced == [sum(parameter.numel() for parameter in module.parameters()) + 1], "one message for all"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("max_grad_norm", [None, 0.5])
def test_a_gradient_that_is_not_finite_moves_nothing_and_is_forgotten(bad: float, max_grad_norm: float | None) -> None:
    disturbed, undisturbed = network(), network()
    first, second = optimizer_of(disturbed, max_grad_norm), optimizer_of(undisturbed, max_grad_norm)
    for step in range(6):
        if step == 3:
            before = [value.clone() for value in (first.flat.data, *first.moments.values(), first.num_steps)]
            norm = first.step(loss_of(disturbed, 99) * bad, 0.01)
            assert not torch.isfinite(norm)
            for now, then in zip((first.flat.data, *first.moments.values(), first.num_steps), before, strict=True):
                assert torch.equal(now, then)
        for module, optimizer in ((disturbed, first), (undisturbed, second)):
            optimizer.step(loss_of(module, step), 0.01)
    assert torch.equal(first.flat, second.flat)
    assert first.num_steps == second.num_steps == 6
