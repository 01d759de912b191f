"""gSDE: noise is a function of the state that is kept for some steps, and its density is that of torch's normal."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Independent, Normal

from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import SACSettings
from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, Spec, box, discrete
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import draw_noise, fill_noise
from quintain.policies.heads import NoiseSpec, StateDependentNoiseHead
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor

SIZES, FEATURES = 2, 3


def head(**settings: object) -> StateDependentNoiseHead:
    made = StateDependentNoiseHead(box(SIZES), ActorCriticSettings(use_sde=True, **settings), FEATURES)
    torch.nn.init.uniform_(made.log_std, -1.0, 0.0)
    return made


def test_an_action_is_the_mean_moved_by_features_times_the_matrix() -> None:
    made = head()
    # One row: mean (1, 2), features (1, 0, 2), unit matrix ((1, 2), (3, 4), (5, 6)), std 0.5 everywhere.
    torch.nn.init.constant_(made.log_std, np.log(0.5))
    output = torch.tensor([[1.0, 2.0, 1.0, 0.0, 2.0]])
    action = torch.zeros(1, SIZES)
    log_prob = made.sample(output, torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), action, None)
    # 1 + 0.5 * (1 * 1 + 2 * 5) and 2 + 0.5 * (1 * 2 + 2 * 6).
    torch.testing.assert_close(action, torch.tensor([[6.5, 9.0]]))
    # Each component has the variance 0.25 * (1 + 0 + 4) = 1.25.
    oracle = Normal(torch.tensor([1.0, 2.0]), 1.25**0.5)
    assert log_prob.item() == pytest.approx(oracle.log_prob(action[0]).sum().item(), abs=1e-4)


def test_density_and_entropy_are_those_of_torch() -> None:
    made = head()
    output, action = torch.randn(50, SIZES + FEATURES), torch.randn(50, SIZES)
    log_prob, entropy = made.evaluate(output, action, None)
    mean, features = output[:, :SIZES], output[:, SIZES:]
    std = torch.sqrt(torch.einsum("bf,fa->ba", features**2, made.log_std.detach().exp() ** 2) + 1e-6)
    oracle = Independent(Normal(mean, std), 1)
    torch.testing.assert_close(log_prob, oracle.log_prob(action), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(entropy, oracle.entropy(), atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_over_draws_of_the_matrix_actions_have_the_density_that_is_learned() -> None:
    made, count = head(), 200_000
    output = torch.tensor([[0.3, -0.7, 1.0, -2.0, 0.5]]).expand(count, -1)
    action = torch.zeros(count, SIZES)
    generator = torch.Generator().manual_seed(0)
    made.sample(output, torch.randn(count, SIZES * FEATURES, generator=generator), action, None)
    # By hand: variance 1 * std_0^2 + 4 * std_1^2 + 0.25 * std_2^2 of each component.
    std = torch.sqrt(torch.tensor([1.0, 4.0, 0.25]) @ (2.0 * made.log_std).exp())
    # Five deviations of a mean of 200,000 draws: 5 / sqrt(200000) = 0.011 of the deviation; of a deviation 0.008.
    torch.testing.assert_close(action.mean(dim=0), torch.tensor([0.3, -0.7]), atol=0.011 * float(std.max()), rtol=0)
    torch.testing.assert_close(action.std(dim=0), std, atol=0, rtol=0.008)


def test_the_variance_gives_features_no_gradient() -> None:
    made = head()
    output = torch.randn(4, SIZES + FEATURES, requires_grad=True)
    made.evaluate(output, torch.randn(4, SIZES), None)[1].sum().backward()
    assert output.grad is None or not output.grad[:, SIZES:].any()
    assert made.log_std.grad is not None
    assert made.log_std.grad.all()


def test_noise_is_held_and_depends_on_lane_and_step_alone() -> None:
    spec = NoiseSpec(num_uniform=1, num_normal=2, hold=4)
    whole = np.zeros((12, 3, 3), np.float32)
    fill_noise(whole, spec, Rng(5), 6, 2)
    # Steps 6 and 7 end an interval of four; 8 to 11 and 12 to 15 are whole, 16 and 17 begin one.
    same = [0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    for step in range(1, 12):
        assert (whole[step, :, 1:] == whole[step - 1, :, 1:]).all() == (same[step] == same[step - 1])
        assert (whole[step, :, 0] != whole[step - 1, :, 0]).all()
    part = np.zeros((3, 1, 3), np.float32)
    fill_noise(part, spec, Rng(5), 9, 4)
    np.testing.assert_array_equal(part, whole[3:6, 2:])


ACTIONS = {
    "one box": box(2, low=-1.0, high=1.0),
    "boxes and a choice": DictSpec((("a", box(2)), ("b", discrete(3)), ("c", box(1, low=-1.0, high=1.0)))),
}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, settings) for name in ACTIONS for settings in ({}, {"hidden_sizes": ()})),
        # Squashing needs bounds.
        ("one box", {"squash_actions": True}),
    ],
)
def test_a_replay_of_the_rollout_has_its_log_probabilities(name: str, settings: dict[str, object]) -> None:
    spec = BehaviorSpec(box(4), ACTIONS[name])
    policy = ActorCritic(ActorCriticSettings(use_sde=True, noise_hold=3, **settings), spec, Rng(1))
    policy.keep_components()
    rollout = Rollout(spec, policy.declare_fields(), num_lanes=2, num_steps=7)
    draw_noise(rollout, policy.noise, Rng(2), first_step=0)
    rollout.write(f.OBS, 0, np.zeros((2, 4), np.float32))
    with torch.no_grad():
        for step in range(7):
            rollout.write(f.OBS, step, np.random.default_rng(step).standard_normal((2, 4)).astype(np.float32))
            policy.act(rollout.slots[step], None)
    names = [key for key in rollout.storage if key.startswith(f.ACTION)] + [f.OBS, f.COMPONENTS]
    now = policy.evaluate_actions({key: rollout.flat(key) for key in names})
    torch.testing.assert_close(now[f.LOG_PROB], rollout.flat(f.LOG_PROB), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(now[f.COMPONENTS], rollout.flat(f.COMPONENTS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("action", "settings", "hold"),
    [
        (box(1), {}, 16),
        (box(low=-1.0, high=1.0), {}, 16),
        (box(2), {}, 1),
        (box(2), {"use_sde": True}, 16),
        (discrete(3), {}, 1),
        (DictSpec((("a", box(1)), ("b", discrete(2)))), {}, 1),
        (box(1), {"noise_hold": 5}, 5),
    ],
)
def test_noise_on_one_continuous_action_is_held_if_it_is_left_to_the_spaces(
    action: Spec, settings: dict[str, object], hold: int
) -> None:
    made = ActorCriticSettings(**{"noise_hold": "auto", **settings})
    assert ActorCritic(made, BehaviorSpec(box(4), action), Rng(0)).noise.hold == hold


def test_sac_proposes_from_the_density_over_all_matrices() -> None:
    spec = BehaviorSpec(box(4), box(2, low=-1.0, high=1.0))
    policy = SoftActor(SoftActorSettings(use_sde=True, hidden_sizes=(8,), initial_log_std=-1.0), spec, Rng(1))
    obs, noise = {f.OBS: torch.randn(30, 4)}, torch.randn(30, 2)
    sample = policy.propose(obs, noise)
    (weight, bias), (last_weight, last_bias) = policy.actor.weights_and_biases
    hidden = torch.relu(obs[f.OBS] @ weight.T + bias)
    mean = hidden @ last_weight.T + last_bias
    # log std of each weight is -1 - log(8) / 2, so the variance is exp(-2) / 8 * sum of squares.
    std = torch.sqrt(hidden.square().sum(dim=1, keepdim=True) * np.exp(-2.0) / 8 + 1e-6)
    raw = mean + std * noise
    density = Normal(mean, std).log_prob(raw) - torch.log(1.0 - torch.tanh(raw).square())
    assert sample.continuous is not None
    assert sample.log_prob is not None
    torch.testing.assert_close(sample.continuous, torch.tanh(raw), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sample.log_prob, density.sum(dim=1), atol=1e-3, rtol=1e-3)
    assert (policy.noise.num_normal, policy.noise.hold, policy.num_continuous) == (16, 16, 2)


@torch.no_grad()
def test_sac_explores_the_whole_range_before_it_learns() -> None:
    made = StateDependentNoiseHead(box(2, low=-1.0, high=1.0), SoftActorSettings(use_sde=True), FEATURES)
    action = torch.zeros(20_000, 2)
    made.explore(torch.randn(20_000, 2 * FEATURES, generator=torch.Generator().manual_seed(0)), action, None)
    # Uniform over (-1, 1): the deviation of a mean of 20,000 draws is 0.58 / 141 = 0.004, the variance 1/3.
    assert torch.tanh(action).mean(dim=0).abs().max() < 0.02
    torch.testing.assert_close(torch.tanh(action).var(dim=0), torch.full((2,), 1 / 3), atol=0.01, rtol=0)


def test_kernels_leave_it_to_torch_and_say_so() -> None:
    soft = SoftActor(SoftActorSettings(use_sde=True), BehaviorSpec(box(4), box(2, low=-1.0, high=1.0)), Rng(1))
    learning = SAC(SACSettings(), soft)
    assert accelerate(soft, learning).paths["learning"] == "plain: gradients are not written out for policy.use_sde"
    policy = ActorCritic(ActorCriticSettings(use_sde=True), BehaviorSpec(box(4), box(2)), Rng(1))
    assert accelerate(policy).paths["acting"] == "plain: there is no kernel for policy.use_sde"


def test_what_cannot_go_together_is_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"policy\.use_sde is about Box actions"):
        ActorCritic(ActorCriticSettings(use_sde=True), BehaviorSpec(box(4), discrete(2)), Rng(0))
    with pytest.raises(SpecMismatch, match=r"policy\.use_sde is about Box actions"):
        SoftActor(SoftActorSettings(use_sde=True), BehaviorSpec(box(4), discrete(2)), Rng(0))
    both = ActorCriticSettings(use_sde=True, state_dependent_std=True)
    with pytest.raises(SettingsError, match="Leave one out"):
        ActorCritic(both, BehaviorSpec(box(4), box(2)), Rng(0))
