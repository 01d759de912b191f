"""Gradients that are written out against autograd's of the same loss, for every option that they know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import SACSettings
from quintain.compiled.plug import accelerate
from quintain.compiled.soft_gradients import SoftGradients
from quintain.compiled.soft_learning import SoftLearning
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.policies.settings import SoftActorSettings
from quintain.policies.soft_actor import SoftActor

SIZE = 24
FLAT = BehaviorSpec(obs=box(5), action=box(2, low=-2.0, high=2.0))
NAMED = BehaviorSpec(
    obs=DictSpec((("seen", box(4)), ("mode", discrete(3)), ("secret", box(2)))), action=box(2, 2, low=-1.0, high=1.0)
)


def make(spec: BehaviorSpec = FLAT, *, compiled: bool | None = None, policy: Any = None, **settings: Any) -> SAC:
    network = SoftActorSettings(**{"hidden_sizes": (16, 12), "compiled": compiled, **(policy or {})})
    actor = SoftActor(network, spec, Rng(1))
    with torch.no_grad():
        # The last layer of a fresh actor is nearly zero, which would hide a wrong gradient behind it.
        for parameter in actor.actor[-1].parameters():
            parameter.add_(torch.linspace(-0.4, 0.4, parameter.numel()).view_as(parameter))
    algorithm = SAC(SACSettings(**settings), actor, None, Rng(2))
    algorithm.observe({name: np.asarray(rows) for name, rows in seen(spec, 50, 9).items()})
    with torch.no_grad():
        for parameter in algorithm.targets.parameters():
            parameter.mul_(0.7)
    return algorithm


def learning_reason(algorithm: SAC) -> str:
    """Plugs kernels in, and returns why gradients are left to autograd, if they are."""
    return accelerate(algorithm.policy, algorithm).learning.fallback_reason


def seen(spec: BehaviorSpec, size: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    if spec is FLAT:
        return {"obs": torch.randn(size, 5, generator=draw)}
    return {
        "obs.seen": torch.randn(size, 4, generator=draw),
        "obs.mode": torch.randint(3, (size,), generator=draw),
        "obs.secret": 2.0 + torch.randn(size, 2, generator=draw),
    }


def minibatch(spec: BehaviorSpec, seed: int = 3) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shape = spec.action.shape  # type: ignore[union-attr]  # one array of numbers
    numbers = int(np.prod(shape))
    return {
        **seen(spec, SIZE, seed + 10),
        **{f"next_{name}": rows for name, rows in seen(spec, SIZE, seed + 20).items()},
        "action": torch.randn(SIZE, *shape, generator=draw),
        "reward": torch.randn(SIZE, generator=draw),
        # One reward, an end, and several rewards: n-step transitions bring discounts of their own.
        "discount": torch.tensor([0.99, 0.0, 0.97] * (SIZE // 3)),
        "noise": torch.randn(SIZE, numbers, generator=draw),
        "next_noise": torch.randn(SIZE, numbers, generator=draw),
    }


def by_autograd(algorithm: SAC, batch: dict[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    algorithm.optimizer.clear()
    loss = algorithm.loss(batch, 0.0)
    algorithm.optimizer.add(loss.total)
    return gradients_of(algorithm), loss.parts


def written_out(algorithm: SAC, batch: dict[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
    # Nothing may be left as it was: what is not written would be the last minibatch's.
    algorithm.optimizer.grad.fill_(float("nan"))
    gradients = SoftGradients(
        algorithm.policy, algorithm.critics, algorithm.targets, algorithm.temperature, len(batch["reward"])
    )
    return gradients_of(algorithm, gradients.write(batch)), gradients.write(batch)


def gradients_of(algorithm: SAC, _: object = None) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in algorithm.optimizer.parameters.items() if p.grad is not None}


OPTIONS: dict[str, tuple[BehaviorSpec, dict[str, Any], dict[str, Any]]] = {
    "default": (FLAT, {}, {}),
    "fixed temperature": (FLAT, {}, {"entropy_coef": 0.4}),
    "no entropy": (FLAT, {}, {"entropy_coef": 0.0}),
    "target entropy": (FLAT, {}, {"target_entropy": -7.0, "initial_entropy_coef": 0.1}),
    "tanh": (FLAT, {"activation": "tanh"}, {}),
    "elu": (FLAT, {"activation": "elu"}, {}),
    "silu": (FLAT, {"activation": "silu"}, {}),
    "no hidden layer": (FLAT, {"hidden_sizes": ()}, {}),
    "one hidden layer": (FLAT, {"hidden_sizes": (7,)}, {}),
    "three hidden layers": (FLAT, {"hidden_sizes": (9, 16, 5), "activation": "silu"}, {}),
    "deviations at their bounds": (FLAT, {"initial_log_std": 1.0}, {}),
    "small deviations": (FLAT, {"initial_log_std": -6.0}, {}),
    "normalised": (FLAT, {"normalize_obs": True, "obs_clip": 1.5}, {}),
    "named parts": (NAMED, {"normalize_obs": True}, {}),
    "a critic that sees more": (NAMED, {"actor_obs": ("seen", "mode"), "critic_obs": ("seen", "secret")}, {}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_gradients_and_reports_are_those_of_autograd(option: str) -> None:
    spec, policy, settings = OPTIONS[option]
    algorithm = make(spec, policy=policy, **settings)
    assert learning_reason(algorithm) == ""
    batch = minibatch(spec)
    expected, expected_parts = by_autograd(algorithm, batch)
    found, found_parts = written_out(algorithm, batch)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-6, rtol=2e-5, msg=lambda m, n=name: f"{n}: {m}")
    assert found_parts.keys() == expected_parts.keys()
    for name, part in expected_parts.items():
        torch.testing.assert_close(
            torch.as_tensor(found_parts[name]), part.float(), atol=2e-6, rtol=2e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_the_bounds_of_deviations_are_met_in_the_options() -> None:
    """Else the test above would say nothing of them."""
    for option, bound in (("deviations at their bounds", 2.0), ("small deviations", -5.0)):
        spec, policy, settings = OPTIONS[option]
        algorithm = make(spec, policy=policy, **settings)
        policy = algorithm.policy
        output = policy.actor(policy.encoder(minibatch(spec)))[:, 2:] + policy.settings.initial_log_std
        beyond = output > bound if bound > 0 else output < bound
        assert 0 < int(beyond.sum()) < beyond.numel()


def test_critics_that_agree_share_the_gradient() -> None:
    algorithm = make()
    with torch.no_grad():
        for parameter in algorithm.critics.parameters():
            parameter[1].copy_(parameter[0])
    batch = minibatch(FLAT)
    expected, _ = by_autograd(algorithm, batch)
    found, _ = written_out(algorithm, batch)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=2e-6, rtol=2e-5)


def test_several_steps_stay_beside_those_of_autograd() -> None:
    fast, plain = make(adam_eps=1e-4), make(compiled=False, adam_eps=1e-4)
    assert (learning_reason(fast), learning_reason(plain)) == ("", "policy.compiled is off")
    for step in range(5):
        reports = []
        for algorithm in (fast, plain):
            reports.append(algorithm.gradient_step(minibatch(FLAT, step), 0.0, 1e-3))
            algorithm.targets.soft_update_(algorithm.critics, 0.1)
        assert reports[0].keys() == reports[1].keys()
        for name, value in reports[1].items():
            torch.testing.assert_close(
                torch.as_tensor(reports[0][name]), torch.as_tensor(value), atol=1e-4, rtol=1e-3, check_dtype=False
            )
    for mine, other in zip(fast.targets.parameters(), plain.targets.parameters(), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-4)


def test_two_threads_change_no_bit() -> None:
    threads, results = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(1)
            algorithm = make()  # with one thread: what the weights begin with depends on their number
            torch.set_num_threads(num_threads)
            assert learning_reason(algorithm) == ""
            learning = algorithm.accelerator
            assert isinstance(learning, SoftLearning)
            with learning.updating():
                for step in range(3):
                    parts = algorithm.gradient_step(minibatch(FLAT, step), 0.0, 1e-3)
                    algorithm.targets.soft_update_(algorithm.critics, 0.1)
            assert torch.get_num_threads() == num_threads
            assert (learning.second_thread.pool is None) == (num_threads == 1)
            results.append(
                (algorithm.optimizer.flat.detach().clone(), {k: torch.as_tensor(v) for k, v in parts.items()})
            )
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(results[0][1][name], results[1][1][name]) for name in results[0][1])


@pytest.mark.parametrize(
    ("spec", "policy", "reason"),
    [
        (BehaviorSpec(obs=box(5), action=discrete(3)), {}, "other than one continuous array"),
        (
            BehaviorSpec(obs=box(5), action=DictSpec((("a", box(1, low=-1.0, high=1.0)), ("b", discrete(2))))),
            {},
            "other than one continuous array",
        ),
        (BehaviorSpec(obs=box(40, 40, 3, dtype="uint8"), action=FLAT.action), {}, "convolutions"),
        (FLAT, {"compiled": False}, "policy.compiled is off"),
    ],
)
def test_what_is_left_to_autograd_says_why(spec: BehaviorSpec, policy: dict[str, Any], reason: str) -> None:
    actor = SoftActor(SoftActorSettings(**{"hidden_sizes": (8,), **policy}), spec, Rng(1))
    assert reason in learning_reason(SAC(SACSettings(), actor, None, Rng(2)))


def test_a_changed_algorithm_or_policy_is_left_to_autograd() -> None:
    class OwnSAC(SAC):
        pass

    class OwnActor(SoftActor):
        pass

    settings = SoftActorSettings(hidden_sizes=(8,))
    assert "OwnSAC" in learning_reason(OwnSAC(SACSettings(), SoftActor(settings, FLAT, Rng(1)), None, Rng(2)))
    assert "OwnActor" in learning_reason(SAC(SACSettings(), OwnActor(settings, FLAT, Rng(1)), None, Rng(2)))
