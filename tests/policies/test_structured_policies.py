"""A policy acts on any mixture of spaces, with groups of observations and with memory, and judges what it did alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete, discrete_sizes, flatten, leaves
from quintain.envs.gym.spaces import behavior_spec
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.base import draw_noise
from quintain.policies.settings import ActorCriticSettings, ActorOnlySettings, MemorySettings
from tests.structured import ACTIONS, OBSERVATIONS, as_declared, observe
from tests.structured import discrete_sizes as choice_sizes_of

SMALL = {"hidden_sizes": (8,), "image_features": 8}


def make(spec: BehaviorSpec, **settings: Any) -> ActorCritic:
    policy = ActorCritic(ActorCriticSettings(**{**SMALL, **settings}), spec, Rng(0))
    with torch.no_grad():
        # A fresh actor is nearly uniform; larger weights make mistakes visible.
        policy.actor[-1].weight.mul_(50)
    return policy


def spec_of(obs: str = "dict", action: str = "hybrid dict", *, masked: bool = False) -> BehaviorSpec:
    spec = behavior_spec("env", OBSERVATIONS[obs], ACTIONS[action], encode_text=True)
    return BehaviorSpec(spec.obs, spec.action, mask_size=sum(discrete_sizes(spec.action)) if masked else 0)


def rollout_for(policy: ActorCritic, num_lanes: int = 6, num_steps: int = 1) -> Rollout:
    """Makes a rollout with random observations of the policy's spec, and its noise."""
    rollout = Rollout(
        policy.spec,
        num_lanes=num_lanes,
        num_steps=num_steps,
        fields=policy.declare_fields(),
    )
    rollout.begin(1, version=0)
    generator = np.random.default_rng(0)
    for name, leaf in leaves(policy.spec.obs, f.OBS).items():
        shape = rollout.storage[name].shape
        high = {"uint8": 255, "int64": min(getattr(leaf, "nvec", (getattr(leaf, "n", 1),)))}.get(leaf.dtype, 2)
        drawn = generator.uniform(0, high, shape)
        rollout.storage[name].copy_(torch.from_numpy(drawn if leaf.dtype == "float32" else np.floor(drawn)))
    if policy.spec.mask_size:
        rollout.storage[f.ACTION_MASK].fill_(True)
    draw_noise(rollout, policy.noise, Rng(1), first_step=0)
    return rollout


def minibatch(rollout: Rollout) -> dict[str, torch.Tensor]:
    named = {name: rollout.flat(name) for name in rollout.slots[0].leaves}
    return {**named, **({f.POLICY_STATE: rollout.policy_state} if rollout.policy_state.shape[1] else {})}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", OBSERVATIONS)
def test_judging_again_gives_what_acting_gave(obs: str, action: str) -> None:
    policy = make(spec_of(obs, action))
    rollout = rollout_for(policy)
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    now = policy.evaluate_actions(minibatch(rollout))
    torch.testing.assert_close(now[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-5, rtol=0)
    torch.testing.assert_close(now[f.VALUE], rollout.flat(f.VALUE), atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.value_of(rollout.slots[0].obs), rollout.flat(f.VALUE), atol=1e-5, rtol=0)
    (now[f.LOG_PROB].sum() + now[f.ENTROPY].sum() + now[f.VALUE].sum()).backward()
    assert all(parameter.grad is not None for parameter in policy.parameters())


@pytest.mark.parametrize(
    ("action", "is_masked"), [(a, m) for a in ACTIONS for m in (False, True) if choice_sizes_of(ACTIONS[a]) or not m]
)
def test_predictions_are_in_the_space_of_the_environment(action: str, is_masked: bool) -> None:
    space = ACTIONS[action]
    policy = make(spec_of("nested", action, masked=is_masked))
    policy.has_missed_mask = True  # that none is passed here is warned of elsewhere
    seen = [observe(OBSERVATIONS["nested"], age, seed=3) for age in range(4)]
    batch = stacked(seen)
    for deterministic in (True, False):
        together, state = policy.predict(batch, deterministic=deterministic)
        assert state is None
        for i, one in enumerate(seen):
            alone, _ = policy.predict(one, deterministic=deterministic)
            assert space.contains(as_declared(space, _row(space, alone)))
            if deterministic:
                of_batch = flatten(policy.spec.action, _row_of(together, i), "action")
                for name, value in flatten(policy.spec.action, alone, "action").items():
                    np.testing.assert_allclose(value, of_batch[name], atol=1e-5)


def _row(space: Any, action: Any) -> Any:
    """Makes Python numbers of 0-d arrays, as Gymnasium's Discrete wants them."""
    if isinstance(space, spaces.Dict):
        return {key: _row(below, action[key]) for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_row(below, action[i]) for i, below in enumerate(space.spaces))
    return int(action) if isinstance(space, spaces.Discrete) else action


def _row_of(batch: Any, i: int) -> Any:
    if isinstance(batch, dict):
        return {key: _row_of(value, i) for key, value in batch.items()}
    return tuple(_row_of(value, i) for value in batch) if isinstance(batch, tuple) else batch[i]


def stacked(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        return {key: stacked([value[key] for value in values]) for key in first}
    if isinstance(first, tuple):
        return tuple(stacked([value[i] for value in values]) for i in range(len(first)))
    return np.stack([np.asarray(value) for value in values])


@pytest.mark.parametrize("obs", ["choice", "choices", "grid of choices", "text"])
def test_predictions_read_choices_and_text_as_the_environment_writes_them(obs: str) -> None:
    policy = make(spec_of(obs, "choice"))
    with torch.no_grad():
        policy.actor[0].weight.mul_(20)
    outputs = []
    for age in range(5):
        seen = observe(OBSERVATIONS[obs], age, seed=0)
        policy.predict(seen)
        outputs.append(policy._read_obs(seen)[0])
    for name in outputs[0]:
        assert all(rows[name].shape == (1, *leaves(policy.spec.obs, f.OBS)[name].shape) for rows in outputs)
        assert len({rows[name].tobytes() for rows in outputs}) > 1
    if obs == "choice":
        # Discrete(8, start=1): ages 0 to 4 are the choices 1 to 5 there and 0 to 4 here.
        assert [rows["obs"].tolist() for rows in outputs] == [[0], [1], [2], [3], [4]]


def test_a_mask_limits_what_is_predicted_wherever_it_comes_from() -> None:
    policy = make(spec_of("dict", "choice", masked=True))
    seen = observe(OBSERVATIONS["dict"], 1, seed=0)
    for allowed in range(3):
        mask = np.arange(3) == allowed
        # Discrete(3, start=1)
        for deterministic in (True, False):
            assert policy.predict(seen, action_mask=mask, deterministic=deterministic)[0] == allowed + 1
            assert policy.predict({**seen, "action_mask": mask}, deterministic=deterministic)[0] == allowed + 1
    batch, masks = stacked([seen, seen]), np.array([[True, False, False], [False, False, True]])
    assert policy.predict(batch, action_mask=masks)[0].tolist() == [1, 3]
    with pytest.raises(SpecMismatch, match=r"predict\(\) got an action mask of 2 options, expected 3"):
        policy.predict(seen, action_mask=[True, True])
    with pytest.raises(SpecMismatch, match="allows nothing"):
        policy.predict(seen, action_mask=[False] * 3)
    with pytest.raises(SpecMismatch, match="without masks"):
        make(spec_of("dict", "choice")).predict(seen, action_mask=[True] * 3)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("groups", [{}, {"actor_obs": ("numbers",), "critic_obs": ("numbers", "choice")}])
def test_predicting_with_memory_hands_the_memory_on(cell: str, groups: dict[str, Any]) -> None:
    policy = make(spec_of(), memory=MemorySettings(cell=cell, size=5), **groups)
    seen = [observe(OBSERVATIONS["dict"], age, seed=2) for age in range(3)]
    state, remembered = None, []
    for obs in seen:
        action, state = policy.predict(obs, state)
        remembered.append(action["push"])
    assert state.shape == (1, policy.state_size)
    forgotten = [policy.predict(obs)[0]["push"] for obs in seen]
    np.testing.assert_allclose(remembered[0], forgotten[0], atol=1e-6)
    assert not np.allclose(remembered[1:], forgotten[1:], atol=1e-4)
    # A state that was handed in stays as it was, so the same step can be asked twice.
    again, _ = policy.predict(seen[1], policy.predict(seen[0])[1])
    before = policy.predict(seen[0])[1]
    kept = before.clone()
    policy.predict(seen[1], before)
    assert torch.equal(before, kept)
    np.testing.assert_allclose(again["push"], remembered[1], atol=1e-6)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("groups", [{}, {"actor_obs": ("numbers",), "critic_obs": ("numbers", "choice")}])
def test_a_replay_repeats_both_memories(cell: str, groups: dict[str, Any]) -> None:
    policy = make(spec_of(), memory=MemorySettings(cell=cell, size=5), **groups)
    assert policy.state_size == (5 if cell == "gru" else 10) * (2 if groups else 1)
    rollout = rollout_for(policy, num_lanes=3, num_steps=6)
    rollout.storage[f.FIRST].zero_()
    rollout[f.FIRST][0, 0] = rollout[f.FIRST][1, 3] = True
    state = torch.from_numpy(np.random.default_rng(2).standard_normal((3, policy.state_size)).astype(np.float32))
    rollout.policy_state.copy_(state)
    before = state.clone()
    with torch.inference_mode():
        for slot in rollout.slots[:-1]:
            policy.act(slot, state)
    assert (state != before).all()
    now = policy.evaluate_actions(minibatch(rollout))
    torch.testing.assert_close(now[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-5, rtol=0)
    torch.testing.assert_close(now[f.VALUE], rollout.flat(f.VALUE), atol=1e-5, rtol=0)


GROUPED = BehaviorSpec(
    obs=DictSpec(
        (("seen", box(2)), ("hidden", DictSpec((("mass", box(1)), ("wind", box(2))))), ("choice", discrete(3)))
    ),
    action=box(1),
)


def test_actor_and_critic_see_only_their_own_group() -> None:
    policy = make(GROUPED, actor_obs=("seen",), critic_obs=("seen", "hidden"), normalize_obs=True)
    assert policy.trunk.output_size == 2
    assert policy.critic_trunk.output_size == 2 + 1 + 2
    rollout = rollout_for(policy)
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    before = {name: rollout.storage[name][0].clone() for name in (f.ACTION, f.VALUE)}
    rollout.storage["obs.hidden.wind"].add_(3.0)
    rollout.storage["obs.choice"].fill_(1)
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    assert torch.equal(rollout.storage[f.ACTION][0], before[f.ACTION])
    assert not torch.equal(rollout.storage[f.VALUE][0], before[f.VALUE])
    policy.observe({name: rollout.flat(name).numpy() for name in rollout.obs_names})
    assert policy.trunk.encoder.normalizer.mean.shape == (2,)
    assert policy.critic_trunk.encoder.normalizer.count == 6


def test_groups_that_see_the_same_share_a_trunk() -> None:
    assert make(GROUPED).critic_trunk is None
    every = ("seen", "hidden", "choice")
    assert make(GROUPED, actor_obs=every, critic_obs=every).critic_trunk is None
    assert make(GROUPED, actor_obs=("hidden", "choice"), critic_obs=("choice", "hidden")).critic_trunk is None


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"actor_obs": ("sean",)}, "policy.actor_obs names 'sean', which the observation does not have; it has seen, "
                                   "hidden.mass, hidden.wind, choice"),
        ({"critic_obs": ()}, "policy.critic_obs is empty"),
        ({"squash_actions": True}, r"policy.squash_actions needs a lower and an upper bound .* action Box\(1\)"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_the_spaces_are_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SpecMismatch, match=problem):
        make(GROUPED, **settings)


def test_settings_without_an_effect_are_refused() -> None:
    choices = BehaviorSpec(obs=discrete(4), action=discrete(2))
    with pytest.raises(SpecMismatch, match=r"policy\.squash_actions is about Box actions, and there are none"):
        make(choices, squash_actions=True)
    with pytest.raises(SpecMismatch, match=r"policy\.state_dependent_std is about Box actions"):
        make(choices, state_dependent_std=True)
    with pytest.raises(
        SpecMismatch, match=r"policy.normalize_obs scales continuous values, and there are none in Discrete\(4\)"
    ):
        make(choices, normalize_obs=True)
    with pytest.raises(SpecMismatch, match=r"policy\.normalize_obs scales continuous values"):
        make(BehaviorSpec(obs=box(8, 8, 1, dtype="uint8"), action=discrete(2)), normalize_obs=True)
    with pytest.raises(SpecMismatch, match="names 'x', which the observation does not have; it has no entries"):
        make(BehaviorSpec(obs=box(3), action=discrete(2)), actor_obs=("x",))
    one_sided = BehaviorSpec(obs=box(1), action=box(2, low=0.0))
    with pytest.raises(SpecMismatch, match="needs a lower and an upper bound"):
        make(one_sided, squash_actions=True)


def test_a_policy_without_a_critic_values_nothing_and_has_no_weights_for_it() -> None:
    spec = spec_of("dict", "choice")
    policy = ActorOnly(ActorOnlySettings(**SMALL), spec, Rng(0))
    rollout = rollout_for(policy)
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    assert not rollout.flat(f.VALUE).any()
    assert rollout.flat(f.LOG_PROB).any()
    assert not policy.value_of(rollout.slots[0].obs).any()
    assert not policy.evaluate_actions(minibatch(rollout))[f.VALUE].any()
    assert not any("critic" in name for name in policy.state_dict())
    with pytest.raises(SettingsError, match=r"policy\.critic_obs is for a critic"):
        ActorOnly(ActorOnlySettings(critic_obs=("choice",)), spec, Rng(0))


def test_wrong_shapes_are_refused_by_name() -> None:
    policy = make(spec_of("dict", "choice"))
    seen = observe(OBSERVATIONS["dict"], 0, seed=0)
    with pytest.raises(SpecMismatch, match=r"predict\(\) got obs.image of shape \(8, 8\)"):
        policy.predict({**seen, "image": np.zeros((8, 8), np.uint8)})
    assert gymnasium.spaces.Discrete(3, start=1).contains(int(policy.predict(seen)[0]))
