"""PPO as ML-Agents means it: each component clipped by itself, values clipped, schedules with their least numbers.

Numbers are worked out by hand, one step and one component at a time, from the formulas of its documentation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, TupleSpec, box, multi_discrete
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from tests.behaviors.runs import make as make_run
from tests.behaviors.runs import run_file
from tests.policies.twins import CASES, rollout_for, twins

HYBRID = BehaviorSpec(box(2), TupleSpec((box(2, low=-1.0, high=1.0), multi_discrete(2, 3))))


class Still:
    """Stands for a network whose output is the same for every row."""

    def __init__(self, output: list[float]) -> None:
        self.output = torch.tensor(output)

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return self.output.expand(len(rows), -1)


def still(spec: BehaviorSpec, output: list[float], value: float, **settings: Any) -> PPO:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,), compiled=False), spec, Rng(0))
    ppo = PPO(PPOSettings(**settings), policy, None, Rng(0))
    del policy.actor, policy.critic
    policy.__dict__.update(actor=Still(output), critic=Still([value]))
    return ppo


def minibatch(**fields: Any) -> dict[str, torch.Tensor]:
    return {name.replace("__", "."): torch.as_tensor(value) for name, value in fields.items()}


def log_normal(x: float, mean: float) -> float:
    """Returns the log-density of a normal distribution with deviation 1."""
    return -0.5 * (x - mean) ** 2 - 0.5 * math.log(2.0 * math.pi)


def test_each_component_is_clipped_by_itself() -> None:
    # Numbers have means 0.5 and -0.25 and deviation 1; choices have odds 1:1 and 1:2:1.
    ppo = still(HYBRID, [0.5, -0.25, 0.0, 0.0, 0.0, math.log(2.0), 0.0], 1.0, clip_per_component=True,
                clip_coef=0.2, entropy_coef=0.1, value_coef=0.5)  # fmt: skip
    now = [math.log(0.5), math.log(0.5), log_normal(1.0, 0.5), log_normal(0.0, -0.25)]
    # Ratios 1.5, 0.5, 1.1 and 0.9 of the two choices and the two numbers; the advantage is 2.
    ratios = [1.5, 0.5, 1.1, 0.9]
    then = [new - math.log(ratio) for new, ratio in zip(now, ratios, strict=True)]
    batch = minibatch(
        obs=torch.zeros(1, 2),
        action__0=[[1.0, 0.0]],
        action__1=[[1, 1]],
        sample_log_prob=[sum(then)],
        component_log_prob=[then],
        advantage=[2.0],
        value=[1.0],
        **{"return": [1.0]},
    )
    loss = ppo.loss(batch, 0.0)
    # min(2 * 1.5, 2 * 1.2), min(2 * 0.5, 2 * 0.8), 2 * 1.1, 2 * 0.9
    assert float(loss.parts["train/policy_loss"]) == pytest.approx(-(2.4 + 1.0 + 2.2 + 1.8) / 4, abs=1e-5)
    # Two of four lie outside of 0.8 to 1.2.
    assert float(loss.parts["train/clip_fraction"]) == 0.5
    # The mean of the numbers' entropies, and the sum of the choices'.
    of_number = 0.5 * math.log(2.0 * math.pi * math.e)
    of_choices = math.log(2.0) + (0.5 * math.log(4.0) + 0.5 * math.log(2.0))
    assert float(loss.parts["train/entropy"]) == pytest.approx(of_number + of_choices, abs=1e-5)
    whole = math.prod(ratios)
    assert float(loss.parts["train/approx_kl"]) == pytest.approx(whole - 1.0 - math.log(whole), abs=1e-5)
    # The same action clipped as a whole has another loss: its ratio is the product, 0.7425.
    together = still(HYBRID, [0.5, -0.25, 0.0, 0.0, 0.0, math.log(2.0), 0.0], 1.0, clip_coef=0.2)
    del batch["component_log_prob"]
    assert float(together.loss(batch, 0.0).parts["train/policy_loss"]) == pytest.approx(-2.0 * 0.7425, abs=1e-4)


@pytest.mark.parametrize(
    ("old", "value", "target", "expected"),
    [
        (0.0, 0.1, 1.0, 0.81),  # it moved less than it may
        (0.0, 0.9, 1.0, 0.64),  # held at 0.2 it is further away, and that counts
        (0.0, -0.9, 1.0, 3.61),  # away from the target: where it is counts
        (2.0, 0.9, 1.0, 0.64),  # from above, held at 1.8
    ],
)
def test_values_are_clipped_by_what_they_were(old: float, value: float, target: float, expected: float) -> None:
    """The larger of (R - V)^2 and (R - Vclip)^2, with Vclip = Vold + clamp(V - Vold, -0.2, 0.2)."""
    ppo = still(BehaviorSpec(box(2), box(1)), [0.0], value, clip_value=0.2)
    batch = minibatch(
        obs=torch.zeros(1, 2),
        action=[[0.0]],
        sample_log_prob=[0.0],
        advantage=[0.0],
        value=[old],
        **{"return": [target]},
    )
    assert float(ppo.loss(batch, 0.0).parts["train/value_loss"]) == pytest.approx(expected, abs=1e-6)


def test_what_values_are_clipped_by_falls_to_its_least() -> None:
    settings = {"clip_value": {"start": 0.2, "end": 0.1}, "clip_coef": {"start": 0.2, "end": 0.1}}
    ppo = still(BehaviorSpec(box(2), box(1)), [0.0], 0.9, **settings)
    batch = minibatch(
        obs=torch.zeros(1, 2), action=[[0.0]], sample_log_prob=[0.0], advantage=[0.0], value=[0.0], **{"return": [1.0]}
    )
    # Held at 0.2, 0.15 and 0.1: v(t) = (0.2 - 0.1) (1 - t) + 0.1.
    found = [float(ppo.loss(batch, fraction).parts["train/value_loss"]) for fraction in (0.0, 0.5, 1.0, 2.0)]
    assert found == pytest.approx([0.64, 0.7225, 0.81, 0.81], abs=1e-6)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_write_the_components_that_torch_does(case: str, deterministic: bool) -> None:
    found = []
    for policy in twins(case):
        policy.keep_components()
        rollout = rollout_for(policy, 40)
        with torch.no_grad():
            policy.act(rollout.slots[0], deterministic=deterministic)
        parts = rollout.arrays[f.COMPONENTS][0]
        assert parts.shape == (40, policy.noise.size)
        np.testing.assert_allclose(parts.sum(axis=1), rollout.arrays[f.LOG_PROB][0], atol=2e-4)
        found.append(parts.copy())
    np.testing.assert_allclose(found[0], found[1], atol=2e-4)


@pytest.mark.parametrize("memory", [None, {"size": 4}])
def test_components_of_agents_are_those_that_were_acted_with(memory: Any) -> None:
    settings = run_file("gates", 2000, algorithm={"clip_per_component": True}, policy={"memory": memory})
    trainer = make_run(settings)
    [gate] = trainer.learners.values()
    for _ in range(2):
        trainer.advance()
    assert gate._stage_collect()
    rollout = gate.taken.rollout
    valid = rollout.array(f.VALID)[:-1]
    parts = rollout.array(f.COMPONENTS)[:-1][valid]
    assert parts.shape[1] == gate.policy.noise.size > 1
    np.testing.assert_allclose(parts.sum(axis=1), rollout.array(f.LOG_PROB)[:-1][valid], atol=1e-5)
    trainer.advance()


@pytest.mark.parametrize("placement", ["local", "threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_lanes_keep_components_too(placement: str) -> None:
    settings: dict[str, Any] = {"num_lanes": 2, "num_steps": 16, "batch_size": 8, "writers": [], "events": []}
    trainer = Trainer("ppo", "Pendulum-v1", clip_per_component=True, placement=placement, **settings)
    assert trainer._stage_collect()
    rollout = trainer.batch.rollout
    assert rollout.array(f.COMPONENTS)[:-1].any()
    np.testing.assert_allclose(rollout.array(f.COMPONENTS)[:-1, :, 0], rollout.array(f.LOG_PROB)[:-1], atol=1e-6)
    trainer.advance()
    trainer.close()


def test_a_policy_that_cannot_say_is_refused() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), BehaviorSpec(box(2), box(1, low=-1.0, high=1.0)), Rng(0))
    with pytest.raises(SettingsError, match="a SoftActor does not say how likely each component"):
        policy.keep_components()


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_component_of_a_single_choice_is_its_log_probability(is_masked: bool) -> None:
    """Odds are 1:3:4, or 1:3 where the last is forbidden; 0.3 lies beyond the first in both."""
    spec = BehaviorSpec(box(2), multi_discrete(3), mask_size=3)
    policy = still(spec, [0.0, math.log(3.0), math.log(4.0)], 1.0, clip_per_component=True).policy
    rollout = Rollout(spec, num_lanes=1, num_steps=1, fields=policy.declare_fields())
    slot = rollout.slots[0]
    slot.noise.fill_(0.3)
    slot.leaves[f.ACTION_MASK].copy_(torch.tensor([[True, True, not is_masked]]))
    policy.act(slot)
    expected = math.log(3.0 / 4.0 if is_masked else 3.0 / 8.0)
    assert slot.leaves[f.ACTION].tolist() == [[1]]
    assert slot.leaves[f.COMPONENTS].tolist() == [[pytest.approx(expected, abs=1e-6)]]
    assert slot.log_prob.tolist() == [pytest.approx(expected, abs=1e-6)]
    assert (slot.mask() is None) is not is_masked
