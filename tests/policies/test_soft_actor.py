"""The soft actor: random starts are even, proposals are what acting does, and bounds are kept."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, multi_discrete
from quintain.errors import SpecMismatch
from quintain.policies.base import draw_noise
from quintain.policies.settings import SoftActorSettings
from quintain.policies.soft_actor import SoftActor

NUMBERS = BehaviorSpec(obs=box(2), action=box(2, low=-3.0, high=1.0))
HYBRID = BehaviorSpec(
    obs=box(2),
    action=DictSpec((("push", box(1, low=-1.0, high=1.0)), ("turn", multi_discrete(3, 2)), ("go", discrete(4)))),
    mask_size=9,
)


def acted(policy: SoftActor, num_lanes: int, mask: torch.Tensor | None = None) -> Rollout:
    rollout = Rollout(policy.spec, num_lanes=num_lanes, num_steps=1, fields=policy.declare_fields())
    draw_noise(rollout, policy.noise, Rng(4), first_step=0)
    if mask is not None:
        rollout.storage[f.ACTION_MASK][0] = mask
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    return rollout


def test_random_numbers_are_even_between_their_bounds() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), NUMBERS, Rng(0))
    policy.acts_at_random.fill_(True)
    rollout = acted(policy, 20_000)
    action = policy.env_action(rollout.slots[0]).numpy()
    assert action.min() >= -3.0
    assert action.max() <= 1.0
    counts, _ = np.histogram(action, bins=8, range=(-3.0, 1.0))
    # 40,000 numbers in 8 bins: 5000 in each, give or take five deviations of 66.
    assert np.abs(counts - 5000).max() < 330
    # Density 1/2 for each of two numbers in (-1, 1).
    assert rollout.storage[f.LOG_PROB][0].unique().tolist() == pytest.approx([-2 * math.log(2)])


def test_random_choices_are_even_among_those_allowed() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), HYBRID, Rng(0))
    policy.acts_at_random.fill_(True)
    # Choices in the order of the leaves: turn (3 and 2), then go (4).
    allowed = torch.tensor([True, False, True, False, True, True, True, True, False])
    rollout = acted(policy, 9000, allowed)
    turn, go = rollout.storage["action.turn"][0], rollout.storage["action.go"][0]
    assert turn[:, 0].bincount(minlength=3).tolist() == pytest.approx([4500, 0, 4500], abs=240)
    assert turn[:, 1].bincount(minlength=2).tolist() == [0, 9000]
    assert go.bincount(minlength=4).tolist() == pytest.approx([3000, 3000, 3000, 0], abs=230)
    expected = math.log(0.5) + math.log(0.5) + math.log(1 / 3)
    assert float(rollout.storage[f.LOG_PROB][0].mean()) == pytest.approx(expected, abs=1e-5)


def test_whoever_acts_for_the_best_does_not_act_at_random() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), NUMBERS, Rng(0))
    calm, _ = policy.predict(np.ones((3, 2), np.float32))
    policy.acts_at_random.fill_(True)
    still, _ = policy.predict(np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(calm, still)


def test_a_proposal_is_the_action_that_acting_would_take() -> None:
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), HYBRID, Rng(3))
    mask = torch.ones(6, 9, dtype=torch.bool)
    rollout = acted(policy, 6, mask)
    step = {name: field[0] for name, field in rollout.storage.items()}
    proposal = policy.propose(step, step[f.NOISE][:, -1:], mask)
    numbers, chosen = policy.continuous_of(step), policy.discrete_of(step)
    assert numbers is not None
    assert chosen is not None
    assert proposal.continuous is not None
    assert proposal.log_prob is not None
    assert proposal.discrete_log_probs is not None
    torch.testing.assert_close(proposal.continuous, numbers)
    # turn stands at 0-2 and 3-4, go at 5-8.
    expected = torch.stack((step["action.turn"][:, 0], 3 + step["action.turn"][:, 1], 5 + step["action.go"]), dim=1)
    assert torch.equal(chosen, expected)
    joint = proposal.log_prob + proposal.discrete_log_probs.gather(1, chosen).sum(dim=1)
    torch.testing.assert_close(joint, step[f.LOG_PROB], atol=1e-5, rtol=0)


def test_numbers_without_bounds_are_refused() -> None:
    spec = BehaviorSpec(obs=box(2), action=box(1, low=-1.0))
    with pytest.raises(SpecMismatch, match="a soft_actor squashes actions, so it needs a lower and an upper bound"):
        SoftActor(SoftActorSettings(), spec, Rng(0))


def test_actor_and_critics_may_see_different_entries() -> None:
    spec = BehaviorSpec(obs=DictSpec((("seen", box(2)), ("hidden", box(3)))), action=discrete(2))
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,), actor_obs=("seen",)), spec, Rng(0))
    assert policy.actor[0].in_features == 2


@pytest.mark.parametrize("spec", [NUMBERS, HYBRID], ids=["numbers", "hybrid"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels_act_as_torch_does(spec: BehaviorSpec, deterministic: bool) -> None:
    compiled, plain = (
        SoftActor(SoftActorSettings(hidden_sizes=(16, 8), normalize_obs=True, compiled=is_compiled), spec, Rng(0))
        for is_compiled in (True, False)
    )
    assert accelerate(compiled).acting.fallback_reason == ""
    assert accelerate(plain).acting.fallback_reason == "policy.compiled is off"
    with torch.no_grad():
        plain.actor[-1].weight.mul_(60)
    plain.observe({"obs": np.random.default_rng(0).normal(2.0, 3.0, (50, 2)).astype(np.float32)})
    compiled.load_state_dict(plain.state_dict())
    results = []
    for policy in (compiled, plain):
        rollout = Rollout(spec, num_lanes=5, num_steps=1, fields=policy.declare_fields())
        draw_noise(rollout, policy.noise, Rng(4), first_step=0)
        rollout.arrays["obs"][...] = np.linspace(-3.0, 5.0, rollout.arrays["obs"].size).reshape(2, 5, 2)
        rollout.storage[f.VALUE].fill_(7.0)
        if spec.mask_size:
            rollout.storage[f.ACTION_MASK].fill_(True)
        with torch.inference_mode():
            policy.act(rollout.slots[0], deterministic=deterministic)
        results.append({name: array[0] for name, array in rollout.arrays.items()})
    for name, found in results[0].items():
        np.testing.assert_allclose(found, results[1][name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert not results[0][f.VALUE].any()
    assert len(np.unique(results[0][f.LOG_PROB])) > 1


def test_random_actions_are_random_with_kernels_too() -> None:
    rollouts = []
    for is_compiled in (True, False):
        policy = SoftActor(SoftActorSettings(hidden_sizes=(4,), compiled=is_compiled), NUMBERS, Rng(0))
        assert bool(accelerate(policy).acting.fallback_reason) is not is_compiled
        policy.acts_at_random.fill_(True)
        rollouts.append(acted(policy, 6))
    assert torch.equal(rollouts[0].storage[f.ACTION], rollouts[1].storage[f.ACTION])


def test_what_a_subclass_changes_is_not_compiled_away() -> None:
    class Doubled(SoftActor):
        """Does everything twice."""

    policy = Doubled(SoftActorSettings(hidden_sizes=(4,)), NUMBERS, Rng(0))
    assert "kernels do not know what Doubled changes" in accelerate(policy).acting.fallback_reason
