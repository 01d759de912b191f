"""DQN against a second implementation: targets, the Huber loss, masks, double and dueling networks, target updates."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.dqn import DQN
from quintain.algorithms.settings import DQNSettings
from quintain.compiled.plug import accelerate
from quintain.compiled.q_gradients import QGradients
from quintain.core.rng import Rng
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.errors import SettingsError
from quintain.policies.normalizer import SETTLED_ROWS
from quintain.policies.q_network import QNetwork
from quintain.policies.settings import QNetworkSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor

SIZE = 24
FREE = BehaviorSpec(obs=box(5), action=discrete(4))
MASKED = BehaviorSpec(obs=box(5), action=discrete(4), mask_size=4)
NAMED = BehaviorSpec(obs=DictSpec((("seen", box(4)), ("mode", discrete(3)))), action=discrete(4))


def make(spec: BehaviorSpec = FREE, policy: dict[str, Any] | None = None, **settings: Any) -> DQN:
    network = QNetwork(QNetworkSettings(**{"hidden_sizes": (16, 12), **(policy or {})}), spec, Rng(1))
    algorithm = DQN(DQNSettings(**settings), network, None, Rng(2))
    algorithm.observe({name: rows.numpy() for name, rows in seen(spec, 50, 9).items()})
    with torch.no_grad():
        for parameter in algorithm.target.parameters():
            parameter.mul_(0.7).add_(0.01)
    return algorithm


def seen(spec: BehaviorSpec, size: int, seed: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    if spec is NAMED:
        return {"obs.seen": torch.randn(size, 4, generator=draw), "obs.mode": torch.randint(3, (size,), generator=draw)}
    return {"obs": torch.randn(size, 5, generator=draw)}


def minibatch(spec: BehaviorSpec) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(3)
    rows = {
        **seen(spec, SIZE, 13),
        **{f"next_{name}": each for name, each in seen(spec, SIZE, 23).items()},
        "action": torch.randint(4, (SIZE,), generator=draw),
        # Large enough for both sides of the Huber loss.
        "reward": 2.0 * torch.randn(SIZE, generator=draw),
        "discount": torch.tensor([0.99, 0.0, 0.97] * (SIZE // 3)),
    }
    if spec is MASKED:
        for name in ("action_mask", "next_action_mask"):
            rows[name] = torch.rand(SIZE, 4, generator=draw) < 0.4
            rows[name][:, 2] = True
    return rows


def plain_values(network: Any, obs: torch.Tensor, *, is_dueling: bool) -> np.ndarray:
    """Values of actions by numpy, row by row."""

    def through(layers: Any, row: np.ndarray) -> np.ndarray:
        linears = [layer for layer in layers if hasattr(layer, "weight")]
        for number, layer in enumerate(linears):
            row = layer.weight.detach().numpy().astype(np.float64) @ row + layer.bias.detach().numpy()
            row = np.maximum(row, 0.0) if number < len(linears) - 1 else row
        return row

    rows = []
    for row in obs.numpy().astype(np.float64):
        values = through(network.layers, row)
        if is_dueling:
            values = through(network.state_value, row)[0] + values - values.mean()
        rows.append(values)
    return np.array(rows)


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("spec", [FREE, MASKED], ids=["free", "masked"])
def test_the_loss_is_that_of_a_second_implementation(spec: BehaviorSpec, dueling: bool, double: bool) -> None:
    algorithm = make(spec, {"dueling": dueling}, double=double)
    rows = minibatch(spec)
    network, target = algorithm.policy.network, algorithm.target
    values = plain_values(network, rows["obs"], is_dueling=dueling)
    counting = plain_values(target, rows["next_obs"], is_dueling=dueling)
    choosing = plain_values(network, rows["next_obs"], is_dueling=dueling) if double else counting
    losses, targets = [], []
    for b in range(SIZE):
        allowed = [a for a in range(4) if spec is FREE or rows["next_action_mask"][b, a]]
        best = max(allowed, key=lambda a: choosing[b, a])
        targets.append(float(rows["reward"][b]) + float(rows["discount"][b]) * counting[b, best])
        error = abs(values[b, int(rows["action"][b])] - targets[-1])
        losses.append(0.5 * error**2 if error < 1.0 else error - 0.5)
    assert any(loss > 0.5 for loss in losses)
    assert any(loss < 0.5 for loss in losses)
    np.testing.assert_allclose(algorithm.targets_of(rows).numpy(), targets, atol=1e-5)
    assert float(algorithm.loss(rows, 0.0).total.detach()) == pytest.approx(float(np.mean(losses)), rel=1e-5)


OPTIONS: dict[str, tuple[BehaviorSpec, dict[str, Any], dict[str, Any]]] = {
    "default": (FREE, {}, {}),
    "masked": (MASKED, {}, {}),
    "double": (FREE, {"activation": "tanh"}, {"double": True}),
    "double and masked": (MASKED, {"activation": "silu"}, {"double": True}),
    "no hidden layer": (FREE, {"hidden_sizes": ()}, {"double": True}),
    "named parts, normalised": (NAMED, {"normalize_obs": True, "obs_clip": 1.5}, {"double": True}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_gradients_that_are_written_out_are_those_of_autograd(option: str) -> None:
    spec, policy, settings = OPTIONS[option]
    algorithm, rows = make(spec, policy, **settings), minibatch(spec)
    assert accelerate(algorithm.policy, algorithm).learning.fallback_reason == ""
    optimizer = algorithm.optimizer
    optimizer.clear()
    loss = algorithm.loss(rows, 0.0)
    optimizer.add(loss.total)
    expected = optimizer.grad.clone()
    # Nothing may be left as it was.
    optimizer.grad.fill_(float("nan"))
    reported = QGradients(algorithm, SIZE).write(rows)
    torch.testing.assert_close(optimizer.grad, expected, atol=1e-6, rtol=1e-5)
    assert expected.abs().max() > 1e-3
    assert reported == pytest.approx({name: float(part) for name, part in loss.parts.items()}, rel=1e-5)


def test_the_target_network_follows_at_its_interval() -> None:
    algorithm = make(target_update_every=3, tau=0.5)
    before = algorithm.target.in_one_piece().clone()
    for number in (1, 2):
        algorithm.step_number = number
        algorithm.update_targets()
    assert torch.equal(algorithm.target.in_one_piece(), before)
    algorithm.step_number = 6
    algorithm.update_targets()
    expected = 0.5 * before + 0.5 * algorithm.policy.network.in_one_piece()
    torch.testing.assert_close(algorithm.target.in_one_piece(), expected)


def test_a_move_of_the_scale_changes_neither_values_nor_targets() -> None:
    algorithm, rows = make(FREE, {"normalize_obs": True, "obs_clip": 100.0}), minibatch(FREE)
    algorithm.observe({"obs": seen(FREE, 2 * SETTLED_ROWS, 5)["obs"].numpy()})
    before = float(algorithm.loss(rows, 0.0).total.detach())
    algorithm.observe({"obs": 5.0 + 3.0 * seen(FREE, SETTLED_ROWS, 4)["obs"].numpy()})
    assert float(algorithm.loss(rows, 0.0).total.detach()) == pytest.approx(before, rel=1e-4)


def test_another_policy_is_refused() -> None:
    other = SoftActor(SoftActorSettings(hidden_sizes=(4,)), FREE, Rng(0))
    with pytest.raises(SettingsError, match=r"use policy\.type q_network"):
        DQN(DQNSettings(), other)


def test_dueling_networks_are_left_to_torch() -> None:
    algorithm = make(FREE, {"dueling": True})
    paths = accelerate(algorithm.policy, algorithm).paths
    assert paths["learning"] == "plain: gradients are not written out for policy.dueling"
    assert paths["acting"] == "plain: there is no kernel for policy.dueling"


def test_exploration_is_reported_as_it_was_acted_with() -> None:
    words: dict[str, Any] = {"learning_starts": 8, "batch_size": 4, "hidden_sizes": [4], "updates_per_step": 1}
    epsilon = {"start": 1.0, "end": 0.0, "until": 0.5}
    rows: list[dict[str, float]] = []
    recorder = SimpleNamespace(open=print, note=print, close=print, write=lambda step, row: rows.append(dict(row)))
    budget = {"total_timesteps": 40, "num_lanes": 1, "num_steps": 8}
    Trainer("dqn", "CartPole-v1", epsilon=epsilon, writer=recorder, writers=[], events=[], **budget, **words).train()
    # Five cycles acted with what holds at 0, 8, 16, 24 and 32 of the 20 steps until its end: (1 + 0.6 + 0.2) / 5.
    assert [row["train/exploration"] for row in rows] == pytest.approx([0.36])
