"""TD3 against a second implementation: smoothed targets, the lower critic, delayed updates, gradients written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.settings import TD3Settings
from quintain.algorithms.td3 import TD3
from quintain.compiled.plug import accelerate
from quintain.compiled.twin_gradients import TwinGradients
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.deterministic_actor import DeterministicActor
from quintain.policies.normalizer import SETTLED_ROWS
from quintain.policies.settings import ActorCriticSettings, DeterministicActorSettings

SIZE = 24
FLAT = BehaviorSpec(obs=box(5), action=box(2, low=-2.0, high=2.0))
NAMED = BehaviorSpec(
    obs=DictSpec((("seen", box(4)), ("mode", discrete(3)), ("secret", box(2)))),
    action=DictSpec((("push", box(1, low=-1.0, high=3.0)), ("turn", box(2, low=-1.0, high=1.0)))),
)


def make(spec: BehaviorSpec = FLAT, policy: dict[str, Any] | None = None, **settings: Any) -> TD3:
    network = DeterministicActorSettings(**{"hidden_sizes": (16, 12), **(policy or {})})
    algorithm = TD3(TD3Settings(**settings), DeterministicActor(network, spec, Rng(1)), None, Rng(2))
    algorithm.observe({name: rows.numpy() for name, rows in seen(spec, 50, 9).items()})
    with torch.no_grad():
        for parameter in (*algorithm.target_critics.parameters(), *algorithm.target_actor.parameters()):
            parameter.mul_(1.3).add_(0.02)
    return algorithm


def seen(spec: BehaviorSpec, size: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    if spec is FLAT:
        return {"obs": torch.randn(size, 5, generator=draw)}
    return {
        "obs.seen": torch.randn(size, 4, generator=draw),
        "obs.mode": torch.randint(3, (size,), generator=draw),
        "obs.secret": 2.0 + torch.randn(size, 2, generator=draw),
    }


def minibatch(spec: BehaviorSpec = FLAT) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    sizes = {"action": 2} if spec is FLAT else {"action.push": 1, "action.turn": 2}
    return {
        **seen(spec, SIZE, 13),
        **{f"next_{name}": each for name, each in seen(spec, SIZE, 23).items()},
        **{name: torch.rand(SIZE, size, generator=draw) * 2.0 - 1.0 for name, size in sizes.items()},
        "reward": torch.randn(SIZE, generator=draw),
        "discount": torch.tensor([0.99, 0.0, 0.97] * (SIZE // 3)),
        "next_noise": 3.0 * torch.randn(SIZE, sum(sizes.values()), generator=draw),
    }


def actor_of(network: Any, obs: torch.Tensor) -> torch.Tensor:
    hidden = obs
    linears = [layer for layer in network.layers if hasattr(layer, "weight")]
    for number, layer in enumerate(linears):
        hidden = hidden @ layer.weight.T + layer.bias
        hidden = hidden.clamp(min=0.0) if number < len(linears) - 1 else hidden
    return torch.tanh(hidden)


def critic_of(critics: Any, which: int, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    hidden = torch.cat((obs, action), dim=1)
    for number, (weight, bias) in enumerate(critics.layers):
        hidden = hidden @ weight[which] + bias[which]
        hidden = hidden.clamp(min=0.0) if number < len(critics.layers) - 1 else hidden
    return hidden[:, 0]


def test_losses_are_those_of_a_second_implementation() -> None:
    algorithm, rows = make(target_noise=0.4, target_noise_clip=0.9), minibatch()
    noise = torch.clamp(0.4 * rows["next_noise"], -0.9, 0.9)
    assert 0.0 < (noise.abs() < 0.9).float().mean() < 1.0
    action = torch.clamp(actor_of(algorithm.target_actor, rows["next_obs"]) + noise, -1.0, 1.0)
    assert (action.abs() == 1.0).any()
    twins = [critic_of(algorithm.target_critics, i, rows["next_obs"], action) for i in range(2)]
    assert (twins[0] < twins[1]).any()
    assert (twins[0] > twins[1]).any()
    target = rows["reward"] + rows["discount"] * torch.minimum(*twins)
    torch.testing.assert_close(algorithm.targets_of(rows), target)
    values = [critic_of(algorithm.critics, i, rows["obs"], rows["action"]) for i in range(2)]
    loss = sum(((value - target.detach()) ** 2).mean() for value in values)
    torch.testing.assert_close(algorithm.loss(rows, 0.0).total, loss)
    wanted = -critic_of(algorithm.critics, 0, rows["obs"], actor_of(algorithm.policy.network, rows["obs"])).mean()
    torch.testing.assert_close(algorithm.policy_loss(rows, 0.0).total, wanted)


@pytest.mark.parametrize("compiled", [None, False], ids=["compiled", "plain"])
def test_the_policy_its_moments_and_the_targets_stand_still_between_their_updates(compiled: bool | None) -> None:
    algorithm, rows = make(FLAT, {"compiled": compiled}, policy_delay=3), minibatch()
    accelerate(algorithm.policy, algorithm)
    actor, critics = algorithm.optimizers["actor"], algorithm.optimizers["critics"]
    targets = (algorithm.target_actor.in_one_piece(), algorithm.target_critics.in_one_piece())

    def step(number: int) -> dict[str, Any]:
        algorithm.step_number = number
        parts = algorithm.gradient_step(rows, 0.0, 1e-2)
        algorithm.update_targets()
        return parts

    assert "train/policy_loss" in step(3)
    weights, held = actor.flat.clone(), [moment.clone() for moment in actor.moments.values()]
    before, slow = critics.flat.clone(), [target.clone() for target in targets]
    for number in (4, 5):
        assert "train/policy_loss" not in step(number)
    assert torch.equal(actor.flat, weights)
    assert all(torch.equal(now, then) for now, then in zip(actor.moments.values(), held, strict=True))
    assert all(torch.equal(now, then) for now, then in zip(targets, slow, strict=True))
    assert not torch.equal(critics.flat, before)
    step(6)
    assert not torch.equal(actor.flat, weights)
    assert (float(actor.num_steps), float(critics.num_steps)) == (2.0, 4.0)
    expected = slow[1] + 0.005 * (algorithm.critics.in_one_piece() - slow[1])
    torch.testing.assert_close(targets[1], expected)


OPTIONS: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "default": (FLAT, {}),
    "tanh": (FLAT, {"activation": "tanh"}),
    "no hidden layer": (FLAT, {"hidden_sizes": ()}),
    "named parts, normalised": (NAMED, {"normalize_obs": True, "obs_clip": 1.5}),
    "critics that see more": (NAMED, {"actor_obs": ("seen", "mode"), "critic_obs": ("seen", "secret")}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_gradients_that_are_written_out_are_those_of_autograd(option: str) -> None:
    spec, policy = OPTIONS[option]
    algorithm, rows = make(spec, policy), minibatch(spec)
    assert accelerate(algorithm.policy, algorithm).learning.fallback_reason == ""
    expected, parts = {}, {}
    for name, loss in (("critics", algorithm.loss), ("actor", algorithm.policy_loss)):
        optimizer = algorithm.optimizers[name]
        optimizer.clear()
        found = loss(rows, 0.0)
        optimizer.add(found.total)
        expected[name] = optimizer.grad.clone()
        parts |= {key: float(value) for key, value in found.parts.items()}
        # Nothing may be left as it was.
        optimizer.grad.fill_(float("nan"))
    gradients = TwinGradients(algorithm, SIZE)
    reported = gradients.write(rows) | gradients.write_policy(rows)
    for name, gradient in expected.items():
        torch.testing.assert_close(algorithm.optimizers[name].grad, gradient, atol=1e-6, rtol=1e-5)
        assert gradient.abs().max() > 1e-3
    assert reported == pytest.approx(parts, rel=1e-5)


def test_a_move_of_the_scale_changes_no_loss() -> None:
    algorithm, rows = make(FLAT, {"normalize_obs": True, "obs_clip": 100.0}), minibatch()
    algorithm.observe({"obs": seen(FLAT, 2 * SETTLED_ROWS, 5)["obs"].numpy()})
    before = [float(loss(rows, 0.0).total.detach()) for loss in (algorithm.loss, algorithm.policy_loss)]
    algorithm.observe({"obs": 5.0 + 3.0 * seen(FLAT, SETTLED_ROWS, 4)["obs"].numpy()})
    after = [float(loss(rows, 0.0).total.detach()) for loss in (algorithm.loss, algorithm.policy_loss)]
    np.testing.assert_allclose(after, before, rtol=1e-4)


def test_another_policy_is_refused() -> None:
    other = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), FLAT, Rng(0))
    with pytest.raises(SettingsError, match=r"use policy\.type deterministic_actor"):
        TD3(TD3Settings(), other)
