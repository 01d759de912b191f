"""A policy with memory acts by kernels as it does by torch's operations: actions, values and what it remembers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete, leaves
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorOnlySettings, MemorySettings
from tests.policies.twins import CASES, rollout_for, twins

CELLS = ("lstm", "gru")
SIZE = 6


def play(policy: ActorCritic, rollout: Rollout, *, deterministic: bool) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Acts through all steps and returns what was written, and what is remembered in the end."""
    state = rollout.policy_state.clone()
    with torch.inference_mode():
        for slot in rollout.slots[:-1]:
            policy.act(slot, state, deterministic=deterministic)
    names = [*leaves(policy.spec.action, f.ACTION), f.LOG_PROB, f.VALUE]
    return {name: rollout.arrays[name][:-1].copy() for name in names}, state.numpy().copy()


@pytest.mark.parametrize("num_lanes", [1, 5, 30])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("case", CASES)
def test_steps_are_those_of_the_plain_path(case: str, cell: str, num_lanes: int) -> None:
    compiled, plain = twins(case, MemorySettings(cell=cell, size=SIZE))
    rollout = rollout_for(plain, num_lanes, num_steps=5)
    assert num_lanes == 1 or rollout.arrays[f.FIRST][1:].any()
    # Deterministic, because where drawn options meet rounding decides; draws are compared without memory.
    expected, expected_state = play(plain, rollout, deterministic=True)
    found, found_state = play(compiled, rollout, deterministic=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found_state, expected_state, rtol=1e-5, atol=5e-6)
    assert not np.allclose(found_state, rollout.policy_state.numpy())


@pytest.mark.parametrize("cell", CELLS)
def test_draws_are_those_of_the_plain_path(cell: str) -> None:
    compiled, plain = twins("squashed state std", MemorySettings(cell=cell, size=SIZE))
    rollout = rollout_for(plain, 9, num_steps=5)
    expected, _ = play(plain, rollout, deterministic=False)
    found, _ = play(compiled, rollout, deterministic=False)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("case", ["choice", "scaled", "mixed obs", "groups"])
def test_values_are_those_of_the_plain_path_and_move_no_memory(case: str, cell: str) -> None:
    compiled, plain = twins(case, MemorySettings(cell=cell, size=SIZE))
    rollout = rollout_for(plain, 11)
    state = rollout.policy_state.clone()
    for first in (None, torch.arange(11) % 3 == 0):
        found = compiled.value_of(rollout.slots[0].obs, state, first)
        with torch.no_grad():
            expected = plain.value_of(rollout.slots[0].obs, state, first)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(state, rollout.policy_state)


def test_actor_and_critic_with_observations_of_their_own_remember_for_themselves() -> None:
    """Guards the cases above: one of them has two memories."""
    compiled, _ = twins("groups", MemorySettings(size=SIZE))
    assert len(compiled.memories) == 2
    assert compiled.state_size == 4 * SIZE


def test_many_memories_go_through_the_same_slot() -> None:
    compiled, plain = twins("choice", MemorySettings(size=SIZE))
    rollout = rollout_for(plain, 4)
    states = [torch.full((4, compiled.state_size), value) for value in (0.0, 0.3, -0.4)]
    rollout.arrays[f.FIRST][0] = False
    for state in states:
        with torch.no_grad():
            others = state.clone()
            compiled.act(rollout.slots[0], state)
            value = rollout.arrays[f.VALUE][0].copy()
            plain.act(rollout.slots[0], others)
        np.testing.assert_allclose(state, others, rtol=1e-5, atol=2e-6)
        np.testing.assert_allclose(value, rollout.arrays[f.VALUE][0], rtol=1e-5, atol=1e-5)


def test_any_number_of_agents_may_act_in_turn() -> None:
    compiled, plain = twins("choice", MemorySettings(size=SIZE))
    blocks = [rollout_for(plain, num_lanes) for num_lanes in (1, 2, 3, 4, 5, 6, 7, 8)]
    for _ in range(2):
        for rollout in blocks:
            expected, expected_state = play(plain, rollout, deterministic=True)
            found, found_state = play(compiled, rollout, deterministic=True)
            np.testing.assert_allclose(found[f.VALUE], expected[f.VALUE], rtol=2e-5, atol=1e-5)
            np.testing.assert_allclose(found_state, expected_state, rtol=1e-5, atol=5e-6)


def test_a_policy_without_a_critic_remembers_too() -> None:
    spec = BehaviorSpec(box(4), discrete(3))
    compiled, plain = (
        ActorOnly(
            ActorOnlySettings(hidden_sizes=(8,), memory=MemorySettings(size=SIZE), compiled=is_compiled), spec, Rng(0)
        )
        for is_compiled in (True, False)
    )
    accelerate(compiled)
    rollout = rollout_for(plain, 6, num_steps=4)
    expected, expected_state = play(plain, rollout, deterministic=True)
    found, found_state = play(compiled, rollout, deterministic=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found_state, expected_state, rtol=1e-5, atol=5e-6)
    assert not found[f.VALUE].any()
