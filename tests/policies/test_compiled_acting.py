"""Acting by kernels is acting: the same actions, log-probabilities and values as torch's, to rounding."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from quintain.algorithms.optimizer import Optimizer
from quintain.compiled.plug import accelerate
from quintain.compiled.rules import MAX_WEIGHTS
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, box, discrete, flatten, leaves
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings, MemorySettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from tests.policies.twins import CASES, IMAGE_CASES, rollout_for, twins

SPEC = BehaviorSpec(box(4), discrete(2))


def acted(policy: ActorCritic, rollout: Rollout, *, deterministic: bool = False) -> dict[str, np.ndarray]:
    with torch.inference_mode():
        policy.act(rollout.slots[1], deterministic=deterministic)
    names = [*leaves(policy.spec.action, f.ACTION), f.LOG_PROB, f.VALUE]
    return {name: rollout.arrays[name][1].copy() for name in names}


def keep_clear_of_edges(policy: ActorCritic, rollout: Rollout) -> None:
    """Moves uniform noise away from every edge between two options, where rounding decides."""
    with torch.no_grad():
        features = policy.trunk.encoder(rollout.slots[1].leaves)
        outputs = policy.actor(features)
    noise, mask = rollout.slots[1].noise, rollout.slots[1].leaves.get(f.ACTION_MASK)
    output = choice = options = 0
    for part in policy.head.parts:
        sizes = getattr(part, "nvec", [part.num_options] if part.num_options else [])
        for i, size in enumerate(sizes):
            logits = outputs[:, output + sum(sizes[:i]) :][:, :size]
            if mask is not None:
                logits = logits.masked_fill(~mask[:, options : options + size], -1e9)
            edges = torch.softmax(logits.double(), dim=-1).cumsum(dim=-1)
            uniform = noise[:, choice]
            is_near = ((edges - uniform.unsqueeze(1)).abs() < 1e-4).any(dim=1)
            uniform.add_(is_near * 3e-4).clamp_(max=0.999)
            assert not ((edges[:, :-1] - uniform.unsqueeze(1)).abs() < 5e-5).any()
            choice, options = choice + 1, options + size
        output += part.output_size


@pytest.mark.parametrize("num_lanes", [1, 7, 24, 150])
@pytest.mark.parametrize("case", [*CASES, *IMAGE_CASES])
def test_draws_are_those_of_the_plain_path(case: str, num_lanes: int) -> None:
    compiled, plain = twins(case)
    rollout = rollout_for(plain, num_lanes)
    keep_clear_of_edges(plain, rollout)
    expected, found = acted(plain, rollout), acted(compiled, rollout)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert num_lanes == 1 or len(np.unique(found[f.LOG_PROB])) > 1


@pytest.mark.parametrize("num_lanes", [5, 40])
@pytest.mark.parametrize("case", [*CASES, *IMAGE_CASES])
def test_the_likeliest_actions_are_those_of_the_plain_path(case: str, num_lanes: int) -> None:
    compiled, plain = twins(case)
    rollout = rollout_for(plain, num_lanes)
    expected = acted(plain, rollout, deterministic=True)
    found = acted(compiled, rollout, deterministic=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("num_rows", [1, 30])
@pytest.mark.parametrize("case", [*CASES, *IMAGE_CASES])
def test_values_are_those_of_the_plain_path(case: str, num_rows: int) -> None:
    compiled, plain = twins(case)
    obs = rollout_for(plain, num_rows).slots[0].obs
    np.testing.assert_allclose(compiled.value_of(obs), plain.value_of(obs).detach(), rtol=1e-5, atol=1e-5)


def test_nothing_but_the_action_its_log_probability_and_its_value_is_written() -> None:
    compiled, plain = twins("hybrid")
    rollout = rollout_for(plain, 6)
    before = {name: array.copy() for name, array in rollout.arrays.items()}
    acted(compiled, rollout)
    written = {name for name, array in rollout.arrays.items() if not np.array_equal(array, before[name])}
    assert written <= {"action.go", "action.push", "action.turn", f.LOG_PROB, f.VALUE}
    assert {"action.push", f.LOG_PROB, f.VALUE} <= written
    assert np.array_equal(rollout.arrays[f.VALUE][0], before[f.VALUE][0])


def test_new_weights_act_at_once_wherever_they_come_from() -> None:
    compiled, plain = twins("choice")
    rollout = rollout_for(plain, 6)
    first = acted(compiled, rollout)[f.VALUE]
    optimizer = Optimizer(compiled.named_parameters(), eps=1e-5, max_grad_norm=None)
    optimizer.flat.data.mul_(1.5)
    scaled = acted(compiled, rollout)[f.VALUE]
    assert not np.allclose(first, scaled)
    compiled.load_state_dict(plain.state_dict())
    np.testing.assert_array_equal(acted(compiled, rollout)[f.VALUE], first)
    with torch.no_grad():
        compiled.critic[-1].bias.add_(2.0)
    np.testing.assert_allclose(acted(compiled, rollout)[f.VALUE], first + 2.0, rtol=1e-5)


def test_a_copy_acts_with_weights_of_its_own() -> None:
    compiled, plain = twins("choice")
    rollout = rollout_for(plain, 6)
    first = acted(compiled, rollout)[f.VALUE]
    copied = copy.deepcopy(compiled)
    with torch.no_grad():
        copied.critic[-1].bias.add_(1.0)
    np.testing.assert_array_equal(acted(compiled, rollout)[f.VALUE], first)
    np.testing.assert_allclose(acted(copied, rollout)[f.VALUE], first + 1.0, rtol=1e-5)


def test_weights_that_are_not_numbers_give_values_that_are_not_numbers() -> None:
    compiled, plain = twins("choice")
    rollout = rollout_for(plain, 6)
    with torch.no_grad():
        compiled.critic[0].weight[0, 0] = torch.nan
    assert np.isnan(acted(compiled, rollout)[f.VALUE]).all()


def test_a_policy_without_a_critic_values_everything_at_zero() -> None:
    compiled, plain = (
        ActorOnly(ActorOnlySettings(hidden_sizes=(8,), compiled=is_compiled), SPEC, Rng(0))
        for is_compiled in (True, False)
    )
    accelerate(compiled)
    rollout = rollout_for(plain, 6)
    keep_clear_of_edges(plain, rollout)
    expected, found = acted(plain, rollout), acted(compiled, rollout)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert not found[f.VALUE].any()


def test_a_user_predicts_by_kernels_too() -> None:
    compiled, plain = twins("numbers")
    obs = np.linspace(-1.0, 1.0, 5, dtype=np.float32)
    np.testing.assert_allclose(compiled.predict(obs)[0], plain.predict(obs)[0], rtol=1e-5)


def test_the_encoder_sees_structured_observations_by_name() -> None:
    """Guards the cases above: the mixed observation has leaves of several kinds."""
    compiled, _ = twins("mixed obs")
    named = flatten(compiled.spec.obs, rollout_for(compiled, 3).slots[0].obs, f.OBS)
    assert {str(value.dtype) for value in named.values()} == {"torch.float32", "torch.int64"}
    assert not compiled.trunk.encoder.is_plain


@pytest.mark.parametrize(
    ("settings", "spec", "reason"),
    [
        ({"compiled": False}, SPEC, "policy.compiled is off"),
        ({"hidden_sizes": (600, 600)}, SPEC, "as fast without kernels"),
    ],
    ids=["off", "large"],
)
def test_what_has_no_kernels_acts_plainly_and_says_why(settings: dict, spec: BehaviorSpec, reason: str) -> None:
    policy = ActorCritic(ActorCriticSettings(**{"hidden_sizes": (8,), **settings}), spec, Rng(0))
    assert reason in accelerate(policy).acting.fallback_reason
    assert policy.accelerator is None


def test_a_soft_actor_with_memory_acts_plainly_and_says_why() -> None:
    spec = BehaviorSpec(box(4), box(2, low=-1.0, high=1.0))
    policy = SoftActor(SoftActorSettings(hidden_sizes=(8,), memory=MemorySettings(size=3)), spec, Rng(0))
    assert accelerate(policy).acting.fallback_reason == "there is no kernel for policy.memory of a soft_actor"
    assert policy.accelerator is None


def test_kernels_that_cannot_be_are_refused_where_they_were_asked_for() -> None:
    spec = BehaviorSpec(box(4), box(2, low=-1.0, high=1.0))
    policy = SoftActor(SoftActorSettings(compiled=True, memory=MemorySettings(size=3)), spec, Rng(0))
    with pytest.raises(SettingsError, match=r"policy\.compiled cannot be on: there is no kernel for") as error:
        accelerate(policy)
    assert error.value.code == "E0251"


def test_the_weights_of_images_do_not_make_a_network_large() -> None:
    image = box(84, 84, 4, low=0, high=255, dtype="uint8")
    policy = ActorCritic(ActorCriticSettings(), BehaviorSpec(image, discrete(2)), Rng(0))
    assert sum(parameter.numel() for parameter in policy.parameters()) > MAX_WEIGHTS
    assert accelerate(policy).acting.fallback_reason == ""


@pytest.mark.parametrize("case", ["image", "three pixels", "images and numbers"])
def test_features_do_not_depend_on_how_many_images_there_are(case: str) -> None:
    compiled, _ = twins(case)
    rollout = rollout_for(compiled, 7)
    together = encoded(compiled, rollout)
    for lane in range(7):
        alone = rollout_for(compiled, 1)
        for name, array in alone.arrays.items():
            array[...] = rollout.arrays[name][:, lane : lane + 1]
        np.testing.assert_array_equal(encoded(compiled, alone)[0], together[lane])


def encoded(policy: ActorCritic, rollout: Rollout) -> np.ndarray:
    acted(policy, rollout)
    [encoding] = rollout.slots[1].prepared.encodings
    return encoding.rows


def test_large_networks_are_compiled_where_that_was_asked_for() -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(600, 600), compiled=True), SPEC, Rng(0))
    assert sum(parameter.numel() for parameter in policy.parameters()) > MAX_WEIGHTS
    assert accelerate(policy).acting.fallback_reason == ""


def test_what_a_subclass_changes_is_not_compiled_away() -> None:
    class Doubled(ActorCritic):
        """Values everything twice as high."""

    accelerated = accelerate(Doubled(ActorCriticSettings(), SPEC, Rng(0)))
    assert "kernels do not know what Doubled changes" in accelerated.acting.fallback_reason
