"""Learning from sequences by kernels is learning: gradients through time, reports and steps are those of autograd."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.compiled.plug import accelerate
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.errors import NonFiniteError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import MemorySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from tests.policies.twins import CASES, rollout_for, twins

CELLS = ("lstm", "gru")
OPTIONS: dict[str, dict[str, Any]] = {
    "entropy": {"entropy_coef": 0.05},
    "values clipped": {"clip_value": 0.2, "value_coef": 1.3},
    "components clipped": {"clip_per_component": True, "clip_coef": 0.1, "entropy_coef": 0.05},
}


def pair(case: str, cell: str, size: int = 6, chunks: dict[str, int] | None = None, **settings: Any) -> tuple[PPO, PPO]:
    compiled, plain = (
        PPO(PPOSettings(**settings), policy, {"extrinsic": Extrinsic(ExtrinsicSettings())}, Rng(3))
        for policy in twins(case, MemorySettings(cell=cell, size=size, **(chunks or {})))
    )
    assert accelerate(compiled.policy, compiled).learning.fallback_reason == ""
    assert accelerate(plain.policy, plain).learning.fallback_reason
    return compiled, plain


def batch_for(policy: Any, *, num_lanes: int = 7, num_steps: int = 12, is_whole: bool = True) -> Batch:
    """Makes sequences of the policy's own actions, with episodes that begin inside, as if it had moved since."""
    rollout = rollout_for(policy, num_lanes, num_steps)
    assert rollout.arrays[f.FIRST][1:-1].any()
    assert not rollout.arrays[f.FIRST][0].all()
    state = rollout.policy_state.clone()
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot, state)
    draw = np.random.default_rng(4)
    for name, spread in ((f.LOG_PROB, 0.2), (f.VALUE, 0.4), (f.COMPONENTS, 0.15)):
        if name in rollout.arrays:
            rollout.arrays[name][...] += draw.normal(size=rollout.arrays[name].shape) * spread
    for name in (f.ADVANTAGE, f.RETURN, f.REWARD):
        rollout.arrays[name][...] = draw.normal(size=rollout.arrays[name].shape)
    if not is_whole:
        rollout.arrays[f.VALID][...] = draw.random(rollout.arrays[f.VALID].shape) < 0.8
        rollout.arrays[f.VALID][:, 2] = False
    return Batch(rollout)


def gradients(compiled: PPO, plain: PPO, batch: Batch, lanes: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradient of the same lanes' loss by both, before any clipping or step."""
    for ppo in (compiled, plain):
        ppo.optimizer.apply = lambda learning_rate, weight=1.0: math.nan  # type: ignore[method-assign,misc,assignment]
        ppo.sampler.lane_numbers = lambda *given: (lanes,)  # type: ignore[method-assign,misc]
    [minibatch] = plain.minibatches(batch, 10_000, 0)
    plain.optimizer.clear()
    plain.optimizer.add(plain.loss(minibatch, 0.0).total)
    assert compiled.accelerator is not None
    list(compiled.accelerator.prepare(batch, Progress(1000), 1e-3)(0))
    return compiled.optimizer.grad.numpy(), plain.optimizer.grad.numpy()


def assert_alike(compiled: PPO, found: np.ndarray, expected: np.ndarray) -> None:
    """Compares each parameter's gradient by its own size: a memory's biases may be small beside a head's weights."""
    start = 0
    for name, parameter in compiled.optimizer.parameters.items():
        part = slice(start, start + parameter.numel())
        largest = np.abs(expected[part]).max()
        assert np.abs(found[part] - expected[part]).max() <= 3e-5 * largest + 1e-8, name
        start = part.stop
    assert start == len(expected)


EVERY_WAY = [(case, "entropy") for case in CASES] + [
    (case, options) for case in ("masked hybrid", "groups") for options in ("values clipped", "components clipped")
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(("case", "options"), EVERY_WAY)
def test_gradients_are_those_of_autograd(case: str, options: str, cell: str) -> None:
    compiled, plain = pair(case, cell, **OPTIONS[options])
    batch = batch_for(plain.policy)
    found, expected = gradients(compiled, plain, batch, torch.tensor([3, 0, 6, 5, 1]))
    memory = {name: value for name, value in plain.optimizer.parameters.items() if ".memory." in name}
    assert len(memory) in (4, 8)
    assert all(np.abs(parameter.grad.numpy()).max() > 1e-5 for parameter in memory.values())  # type: ignore[union-attr]
    assert_alike(compiled, found, expected)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "chunks",
    [{"context_length": 4}, {"context_length": 5}, {"burn_in": 5}, {"context_length": 3, "burn_in": 2}],
    ids=str,
)
def test_gradients_of_chunks_are_those_of_autograd(chunks: dict[str, int], cell: str) -> None:
    lanes = torch.tensor([3, 0, 6, 5, 1])
    compiled, plain = pair("groups", cell, chunks=chunks)
    batch = batch_for(plain.policy)
    found, expected = (each.copy() for each in gradients(compiled, plain, batch, lanes))
    assert_alike(compiled, found, expected)
    # And others than those of whole sequences.
    whole, _ = gradients(*pair("groups", cell), batch, lanes)
    assert np.abs(found - whole).max() > 1e-4


@pytest.mark.parametrize("lanes", [[0], [4, 2], [1, 2, 3], list(range(40))], ids=len)
@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("cell", CELLS)
def test_no_number_of_lanes_or_units_is_special(cell: str, size: int, lanes: list[int]) -> None:
    compiled, plain = pair("hybrid", cell, size, entropy_coef=0.01)
    batch = batch_for(plain.policy, num_lanes=40, num_steps=17, is_whole=False)
    lanes = [lane for lane in lanes if batch.rollout.arrays[f.VALID][:-1, lane].any()]
    assert_alike(compiled, *gradients(compiled, plain, batch, torch.tensor(lanes)))


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_go_through_long_sequences(cell: str) -> None:
    compiled, plain = pair("choice", cell, 8)
    batch = batch_for(plain.policy, num_lanes=2, num_steps=300)
    batch.rollout.arrays[f.FIRST][...] = False
    batch.rollout.arrays[f.FIRST][150, 1] = True
    assert_alike(compiled, *gradients(compiled, plain, batch, torch.tensor([1, 0])))


@pytest.mark.parametrize("cell", CELLS)
def test_nothing_flows_back_over_the_beginning_of_an_episode(cell: str) -> None:
    """What was seen before an episode changes nothing in the gradient of the steps after its beginning."""
    found = []
    for shift in (0.0, 3.0):
        compiled, plain = pair("choice", cell)
        batch = batch_for(plain.policy, num_lanes=4)
        batch.rollout.arrays[f.FIRST][6] = True
        batch.rollout.arrays[f.VALID][:6] = False
        batch.rollout.arrays[f.OBS][:6] += shift
        found.append(gradients(compiled, plain, batch, torch.arange(4))[0].copy())
    np.testing.assert_array_equal(*found)
    assert np.abs(found[0]).max() > 1e-3


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("case", ["masked choice", "squashed state std", "hybrid", "groups", "no hidden layer"])
def test_an_update_ends_with_the_weights_and_reports_of_the_plain_path(case: str, cell: str) -> None:
    settings = {"num_epochs": 3, "batch_size": 24, "entropy_coef": 0.01, "clip_value": 0.5, "learning_rate": 1e-3}
    compiled, plain = pair(case, cell, **settings)
    before = {name: value.clone() for name, value in plain.policy.state_dict().items()}
    batch = batch_for(plain.policy, is_whole=False)
    reports = []
    for ppo in (compiled, plain):
        ppo.estimate(batch)
        reports.append(ppo.update(batch, Progress(1000)))
    assert [*reports[0]] == [*reports[1]]
    for name, value in reports[1].items():
        assert reports[0][name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    moved = 0.0
    for name, parameter in plain.policy.state_dict().items():
        np.testing.assert_allclose(compiled.policy.state_dict()[name], parameter, atol=1e-4, err_msg=name)
        moved = max(moved, float((parameter - before[name]).abs().max()))
    assert moved > 5e-3


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("case", ["choice", "numbers", "groups"])
def test_a_replay_repeats_the_rollout(case: str, cell: str) -> None:
    """The first minibatch of what kernels collected has a probability ratio of one everywhere, to rounding."""
    compiled, _ = pair(case, cell, num_epochs=1, batch_size=10_000, learning_rate=1e-9)
    policy: Any = compiled.policy
    rollout = rollout_for(policy, 6, 20)
    state = rollout.policy_state.clone()
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot, state)
    draw = np.random.default_rng(0)
    rollout.arrays[f.ADVANTAGE][...] = draw.normal(size=rollout.arrays[f.ADVANTAGE].shape)
    rollout.arrays[f.RETURN][...] = rollout.arrays[f.VALUE]
    report = compiled.update(Batch(rollout), Progress(1000))
    assert abs(report["train/approx_kl"]) < 1e-7
    assert report["train/value_loss"] < 1e-9
    assert report["train/policy_loss"] == pytest.approx(-rollout.arrays[f.ADVANTAGE][:-1].mean(), abs=1e-5)


def test_steps_that_do_not_count_are_remembered_and_not_learned_from() -> None:
    weights = []
    for spoiled in (0.0, 1e6):
        compiled, plain = pair("choice", "lstm", num_epochs=2, batch_size=24)
        batch = batch_for(plain.policy, is_whole=False)
        for name in (f.ADVANTAGE, f.RETURN, f.LOG_PROB):
            batch.rollout.arrays[name][~batch.rollout.arrays[f.VALID]] = spoiled
        compiled.update(batch, Progress(1000))
        weights.append(compiled.optimizer.flat.detach().clone())
    assert torch.equal(*weights)


def test_numbers_that_are_not_finite_move_nothing_and_are_refused() -> None:
    compiled, plain = pair("choice", "lstm", num_epochs=1, batch_size=10_000)
    batch = batch_for(plain.policy)
    batch.rollout.arrays[f.ADVANTAGE][3, 2] = np.nan
    before = compiled.optimizer.flat.detach().clone()
    with pytest.raises(NonFiniteError, match=r"became nan"):
        compiled.update(batch, Progress(1000))
    assert torch.equal(compiled.optimizer.flat.detach(), before)
    assert float(compiled.optimizer.num_steps) == 0.0


def test_the_gradient_counts_by_the_steps_that_count() -> None:
    """Ranks weigh their gradients by it."""
    compiled, plain = pair("choice", "gru", num_epochs=1, batch_size=36)
    batch = batch_for(plain.policy, is_whole=False)
    found = []

    def note(learning_rate: float, weight: float = 1.0) -> float:
        found.append(weight)
        return 0.0

    compiled.optimizer.apply = note  # type: ignore[method-assign,assignment]
    compiled.update(batch, Progress(1000))
    assert len(found) == 2
    assert sum(found) == batch.num_valid < 6 * 12


def test_a_policy_with_two_memories_is_among_the_cases() -> None:
    """Guards the cases above."""
    compiled, _ = twins("groups", MemorySettings(size=3))
    assert isinstance(compiled, ActorCritic)
    assert len(compiled.memories) == 2
