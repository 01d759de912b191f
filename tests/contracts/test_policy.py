"""What every policy promises: acting is repeatable, and learning sees what acting did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, BoxSpec, DictSpec, DiscreteSpec, box, build, discrete, leaves
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.base import Policy, draw_noise

NAMES = [*registry.names("policy"), "wide_actor_critic"]
SPECS = {
    "choices": BehaviorSpec(obs=box(4), action=discrete(3)),
    "choices from one": BehaviorSpec(obs=box(4), action=discrete(3, start=1)),
    "numbers": BehaviorSpec(obs=box(3), action=box(2, low=-0.5, high=0.5)),
    "images": BehaviorSpec(obs=box(2, 2, 3, low=0, high=255, dtype="uint8"), action=discrete(2)),
    "teams": BehaviorSpec(obs=DictSpec((("agent", discrete(2)), ("seen", box(3)))), action=discrete(3)),
}
SINGLE = ("choices", "choices from one", "numbers", "images")
TAKES = {
    "q_network": ("choices", "choices from one", "images"),
    "deterministic_actor": ("numbers",),
    "team": ("teams",),
}
"""Policies that are for some spaces only."""
NEEDS: dict[str, dict[str, Any]] = {
    "team": {"agents": ("prover", "verifier")},
    "mine_policy": {"network": {"memory": None}},
}
"""Settings without which a policy cannot be made, or has a memory."""
UNSCALED = ("team", "mine_policy")
"""Policies that do not normalize observations."""
CASES = [pytest.param(name, SPECS[spec], id=f"{name}-{spec}") for name in NAMES for spec in TAKES.get(name, SINGLE)]
pytestmark = pytest.mark.parametrize(("name", "spec"), CASES)


def make(name: str, spec: BehaviorSpec, seed: int = 0, **settings: object) -> Policy:
    registration = registry.get("policy", name)
    policy: Policy = registration.load()(
        registration.settings_class(**NEEDS.get(name, {}), **settings), spec, Rng(seed)
    )
    return policy


def observed(spec: BehaviorSpec, how_many: int) -> dict[str, np.ndarray]:
    """Draws the leaves of observations."""
    generator = np.random.default_rng(0)
    drawn = {}
    for name, leaf in leaves(spec.obs, f.OBS).items():
        high = leaf.n if isinstance(leaf, DiscreteSpec) else 3
        drawn[name] = generator.uniform(0, high, (how_many, *leaf.shape)).astype(leaf.dtype)
    return drawn


def observations(spec: BehaviorSpec, how_many: int) -> Any:
    return build(spec.obs, observed(spec, how_many), f.OBS)


def taken(rollout: Rollout, spec: BehaviorSpec) -> dict[str, torch.Tensor]:
    """Returns a minibatch of the observations and the actions taken."""
    return {name: rollout.flat(name) for name in (*leaves(spec.obs, f.OBS), f.ACTION)}


def acted(policy: Policy, spec: BehaviorSpec, *, deterministic: bool = False) -> Rollout:
    rollout = Rollout(spec, num_lanes=6, num_steps=1, fields=policy.declare_fields())
    draw_noise(rollout, policy.noise, Rng(1), first_step=0)
    for leaf, values in observed(spec, 6).items():
        rollout.write(leaf, 0, values)
    with torch.inference_mode():
        policy.act(rollout.slots[0], deterministic=deterministic)
    return rollout


def test_acting_is_a_function_of_the_noise(name: str, spec: BehaviorSpec) -> None:
    policy = make(name, spec)
    torch.manual_seed(1)
    first = acted(policy, spec)
    torch.manual_seed(2)
    second = acted(policy, spec)
    for field in (f.ACTION, f.LOG_PROB, f.VALUE):
        assert torch.equal(first.storage[field], second.storage[field])


def test_learning_judges_actions_as_acting_did(name: str, spec: BehaviorSpec) -> None:
    policy = make(name, spec)
    rollout = acted(policy, spec)
    judged = policy.evaluate_actions(taken(rollout, spec))
    # Not bitwise: a Gaussian's noise is recovered from the action, (a - mean) / std, which rounds.
    torch.testing.assert_close(judged[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-5, rtol=0)
    torch.testing.assert_close(judged[f.VALUE], rollout.flat(f.VALUE), atol=1e-6, rtol=0)
    assert judged[f.ENTROPY].shape == (6,)
    seen = build(spec.obs, taken(rollout, spec), f.OBS)
    torch.testing.assert_close(policy.value_of(seen), rollout.flat(f.VALUE), atol=1e-6, rtol=0)


def test_every_weight_gets_a_gradient(name: str, spec: BehaviorSpec) -> None:
    policy = make(name, spec)
    rollout = acted(policy, spec)
    judged = policy.evaluate_actions(taken(rollout, spec))
    if name in ("q_network", "deterministic_actor"):
        # Their actions have no probabilities; critics teach them.
        assert not any(each.requires_grad or each.any() for each in judged.values())
        return
    (judged[f.LOG_PROB].sum() + judged[f.ENTROPY].sum() + judged[f.VALUE].sum()).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in policy.parameters())


def test_predict_takes_one_observation_or_many_and_answers_for_the_environment(name: str, spec: BehaviorSpec) -> None:
    policy = make(name, spec)
    many = observations(spec, 5)
    actions, state = policy.predict(many)
    one, _ = policy.predict(build(spec.obs, {leaf: values[0] for leaf, values in observed(spec, 5).items()}, f.OBS))
    assert state is None
    assert len(actions) == 5
    # Not bitwise: a product of one row may be summed in another order than the same row among five.
    np.testing.assert_allclose(one, actions[0], atol=1e-6, rtol=0)
    sampled, _ = policy.predict(many, deterministic=False, rng=Rng(9))
    again, _ = policy.predict(many, deterministic=False, rng=Rng(9))
    np.testing.assert_array_equal(sampled, again)
    for chosen in (actions, sampled):
        if hasattr(spec.action, "n"):
            assert spec.action.start <= chosen.min() <= chosen.max() < spec.action.start + spec.action.n
        else:
            assert np.abs(chosen).max() <= 0.5
    if isinstance(spec.obs, BoxSpec):
        with pytest.raises(SpecMismatch, match="the policy takes"):
            policy.predict(np.zeros((2, 3, 5, 7)))


def test_predict_samples_anew_at_every_call_and_repeats_itself_where_it_is_asked_to(
    name: str, spec: BehaviorSpec
) -> None:
    policy, many = make(name, spec), observations(spec, 64)
    before = {key: value.clone() for key, value in policy.state_dict().items()}

    def sampled(**asked: Any) -> Any:
        return policy.predict(many, deterministic=False, **asked)[0]

    assert not np.array_equal(sampled(), sampled())
    np.testing.assert_array_equal(sampled(seed=7), sampled(seed=7))
    np.testing.assert_array_equal(sampled(seed=7), sampled(rng=Rng(7)))
    assert not np.array_equal(sampled(seed=7), sampled(seed=8))
    # A generator moves on, so that a whole episode repeats itself from its seed.
    episodes = [[sampled(rng=generator) for _ in range(2)] for generator in map(np.random.default_rng, (3, 3))]
    np.testing.assert_array_equal(episodes[0], episodes[1])
    assert not np.array_equal(episodes[0][0], episodes[0][1])
    # What is likeliest takes no draw.
    first, second = (make(name, spec) for _ in range(2))
    first.predict(many)
    one, other = (each.predict(many, deterministic=False)[0] for each in (first, second))
    np.testing.assert_array_equal(one, other)
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())
    with pytest.raises(SettingsError, match=r"predict\(\) got both rng and seed; pass one of them"):
        sampled(rng=Rng(1), seed=1)


def test_a_loaded_state_acts_identically(name: str, spec: BehaviorSpec) -> None:
    scaled = {} if name in UNSCALED else {"normalize_obs": True}
    policy, other = make(name, spec, seed=1, **scaled), make(name, spec, seed=2, **scaled)
    policy.observe(observed(spec, 50))
    # In the beginning epsilon is 1, so that only the best actions show the weights.
    ours, theirs = (acted(each, spec, deterministic=name == "q_network").storage for each in (policy, other))
    assert any(not torch.equal(ours[field], theirs[field]) for field in (f.ACTION, f.LOG_PROB, f.VALUE))
    other.load_state_dict({key: value.clone() for key, value in policy.state_dict().items()})
    for field in (f.ACTION, f.LOG_PROB, f.VALUE):
        assert torch.equal(acted(policy, spec).storage[field], acted(other, spec).storage[field])


def test_the_seed_decides_the_weights_and_global_generators_do_not(name: str, spec: BehaviorSpec) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = make(name, spec, seed=3)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    for mine, theirs in zip(first.parameters(), make(name, spec, seed=3).parameters(), strict=True):
        assert torch.equal(mine, theirs)
