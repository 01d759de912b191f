"""Weights that were replaced act and learn like weights that were copied in place, by kernels and without them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain import Trainer
from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, box
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.policies.soft_actor import SoftActor
from quintain.services.checkpoints.state_files import digest_of

OBS = np.array([0.3, -0.4, 0.5], np.float32)


def other_weights(module: nn.Module) -> dict[str, torch.Tensor]:
    """Returns a state with other weights, the same at every call, and everything else as it is."""
    generator = torch.Generator().manual_seed(11)
    weights = {
        name: 0.3 * torch.randn(parameter.shape, generator=generator) for name, parameter in module.named_parameters()
    }
    return {**{name: value.clone() for name, value in module.state_dict().items()}, **weights}


def copy_in_place(module: nn.Module) -> None:
    module.load_state_dict(other_weights(module))


def assign(module: nn.Module) -> None:
    module.load_state_dict(other_weights(module), assign=True)


def replace_by_hand(module: nn.Module) -> None:
    weights = other_weights(module)
    for name, _ in list(module.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        setattr(module.get_submodule(owner), leaf, nn.Parameter(weights[name]))


def replace_data(module: nn.Module) -> None:
    weights = other_weights(module)
    for name, parameter in module.named_parameters():
        parameter.data = weights[name]


def replace_last_data(module: nn.Module) -> None:
    """Copies all in place but the last, which nothing looks at first."""
    weights = other_weights(module)
    *others, (last, parameter) = module.named_parameters()
    with torch.no_grad():
        for name, other in others:
            other.copy_(weights[name])
    parameter.data = weights[last]


WAYS: dict[str, Callable[[nn.Module], None]] = {
    "assigned": assign,
    "by hand": replace_by_hand,
    "data": replace_data,
    "last data": replace_last_data,
}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 16, "batch_size": 16, "num_epochs": 2},
    "a2c": {"num_steps": 16},
    "sac": {"batch_size": 16, "learning_starts": 32},
}


def trainer_of(algorithm: str, is_compiled: bool) -> Trainer:
    return Trainer(
        algorithm,
        "Pendulum-v1",
        num_lanes=2,
        seed=3,
        writers=[],
        hidden_sizes=[8, 8],
        compiled=is_compiled,
        **KINDS[algorithm],
    )


def modules_of(trainer: Trainer) -> list[nn.Module]:
    algorithm: Any = trainer.algorithm
    return [trainer.policy, *(getattr(algorithm, name) for name in ("critics", "targets") if hasattr(algorithm, name))]


def trained(algorithm: str, is_compiled: bool, replace: Callable[[nn.Module], None], *, asks: bool) -> tuple[Any, str]:
    """Trains, replaces all weights, trains on, and returns what was predicted in between and the digest."""
    trainer = trainer_of(algorithm, is_compiled)
    trainer.train(64)
    for module in modules_of(trainer):
        replace(module)
    predicted = trainer.predict(OBS)[0] if asks else None
    trainer.train(128)
    state = digest_of(trainer.state_dict())
    trainer.close()
    return predicted, state


@pytest.mark.slow
@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("algorithm", KINDS)
def test_replaced_weights_act_and_learn_like_copied_ones(algorithm: str, is_compiled: bool) -> None:
    predicted, state = trained(algorithm, is_compiled, copy_in_place, asks=True)
    for i, (name, replace) in enumerate(WAYS.items()):
        # A prediction in between moves what was replaced before the next cycle can.
        asks = i % 2 == 0
        found = trained(algorithm, is_compiled, replace, asks=asks)
        assert found[1] == state, name
        if asks:
            np.testing.assert_array_equal(found[0], predicted, err_msg=name)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_policy_without_a_trainer_acts_with_replaced_weights(is_compiled: bool) -> None:
    spec = BehaviorSpec(obs=box(3), action=box(2, low=-1.0, high=1.0))

    def policy() -> ActorCritic:
        made = ActorCritic(ActorCriticSettings(hidden_sizes=(8, 8), compiled=is_compiled), spec, Rng(1))
        assert bool(accelerate(made).acting.fallback_reason) is not is_compiled
        made.predict(OBS)  # it has acted with the weights before
        return made

    expected = policy()
    copy_in_place(expected)
    for name, replace in WAYS.items():
        found = policy()
        replace(found)
        np.testing.assert_array_equal(found.predict(OBS)[0], expected.predict(OBS)[0], err_msg=name)
        torch.testing.assert_close(
            found.value_of(torch.from_numpy(OBS)[None]), expected.value_of(torch.from_numpy(OBS)[None])
        )


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("algorithm", ["ppo", "sac"])
def test_weights_of_another_shape_are_refused(algorithm: str, is_compiled: bool) -> None:
    trainer = trainer_of(algorithm, is_compiled)
    trainer.train(32)
    policy = trainer.policy
    assert isinstance(policy, ActorCritic | SoftActor)
    last: Any = policy.actor[-1]
    last.bias = nn.Parameter(torch.zeros(5))
    with pytest.raises(
        SettingsError, match=r"actor\.4\.bias was replaced by \[5\] torch.float32 on cpu; expected \[\d\] "
    ):
        trainer.train(64)
    trainer.close()
