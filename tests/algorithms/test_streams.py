"""Reward streams by hand: advantages by each one's own discount, their mean, the critic's loss and its gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from quintain import Trainer
from quintain.algorithms.ppo import PPO
from quintain.algorithms.returns import explained_variance
from quintain.algorithms.settings import A2CSettings, PPOSettings
from quintain.compiled.plug import accelerate
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.data.views import transition_view
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.export import ActingModule
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from quintain.rewards.base import RewardSignal
from quintain.services.checkpoints.state_files import digest_of
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.algorithms.stream_signals import Given
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(3), action=discrete(2))
SURPRISE = {"type": "tests.algorithms.stream_signals:Surprise", "gamma": 0.8, "strength": 0.3}
TWO = {"extrinsic": {"gamma": 0.95}, "surprise": SURPRISE}


def make(signals: dict[str, RewardSignal], **settings: Any) -> PPO:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), SPEC, Rng(0))
    chosen = {"reward_streams": "averaged", "normalize_advantage": False, "gae_lambda": 0.5, **settings}
    return PPO(PPOSettings(**chosen), policy, signals, Rng(0))


def two(ignores_ends: bool = True) -> dict[str, RewardSignal]:
    """Returns two signals for three steps of two lanes; the second is halved."""
    first = Given([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]], gamma=0.5)
    second = Given([[4.0, 8.0], [4.0, 0.0], [4.0, 4.0]], gamma=0.25, strength=0.5, ignores_ends=ignores_ends)
    return {"first": first, "second": second}


def played(ppo: PPO) -> Rollout:
    """Makes three steps of two lanes whose second steps end an episode: one really, and one that was cut."""
    rollout = Rollout(SPEC, num_lanes=2, num_steps=3, fields=ppo.policy.declare_fields())
    rollout.begin(1, version=0)
    rollout.storage[f.VALUE][..., 0] = torch.tensor([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0], [4.0, 2.0]])
    rollout.storage[f.VALUE][..., 1] = torch.tensor([[4.0, 0.0], [0.0, 4.0], [8.0, 0.0], [4.0, 8.0]])
    rollout.storage[f.DONE][1] = True
    rollout.storage[f.TERMINATED][1, 0] = rollout.storage[f.TRUNCATED][1, 1] = True
    rollout.storage[f.FINAL_VALUE][1, 0] = torch.tensor([6.0, 16.0])
    rollout.storage[f.FINAL_VALUE][1, 1] = torch.tensor([8.0, 4.0])
    return rollout


@pytest.mark.parametrize("ignores_ends", [True, False])
def test_each_stream_has_its_own_discount_and_ends_and_the_advantage_is_their_mean(ignores_ends: bool) -> None:
    ppo = make(two(ignores_ends))
    rollout = played(ppo)
    ppo.estimate(Batch(rollout))
    # By 0.5 and 0.25 to the next advantage. Lane 0 has deltas 1 + 0.5 * 2 - 1, 2 + 0 - 2 and 3 + 0.5 * 4 - 3;
    # lane 1 has 1 + 0.5 * 1, 1 + 0.5 * 8 - 1, for its episode was cut, and 1 + 0.5 * 2.
    first = np.array([[1.0, 1.5 + 0.25 * 4.0], [0.0, 4.0], [2.0, 2.0]])
    # By 0.25 and 0.125. Lane 0: 2 + 0 - 4, 2 + 0.25 * 16 where the end is no end, else 2, and 2 + 0.25 * 4 - 8;
    # lane 1: 4 + 0.25 * 4, 0 + 0.25 * 4 - 4 and 2 + 0.25 * 8.
    end = 6.0 if ignores_ends else 2.0
    second = np.array([[-2.0 + 0.125 * end, 5.0 - 0.125 * 3.0], [end, -3.0], [-5.0, 4.0]])
    np.testing.assert_array_equal(rollout.array(f.ADVANTAGE)[:-1], (first + second) / 2.0)
    returns = rollout.array(f.RETURN)[:-1]
    np.testing.assert_array_equal(returns[..., 0], first + np.array([[1.0, 0.0], [2.0, 1.0], [3.0, 0.0]]))
    np.testing.assert_array_equal(returns[..., 1], second + np.array([[4.0, 0.0], [0.0, 4.0], [8.0, 0.0]]))


def test_the_advantage_that_is_scaled_is_the_mean() -> None:
    ppo, scaled = make(two()), make(two(), normalize_advantage=True)
    found, other = played(ppo), played(scaled)
    ppo.estimate(Batch(found))
    scaled.estimate(Batch(other))
    advantage = found.array(f.ADVANTAGE)[:-1]
    expected = (advantage - advantage.mean()) / advantage.std()
    np.testing.assert_allclose(other.array(f.ADVANTAGE)[:-1], expected, rtol=1e-5)


def minibatch(num_rows: int, **fields: Any) -> dict[str, torch.Tensor]:
    given = {
        f.OBS: torch.linspace(-1.0, 1.0, 3 * num_rows).view(num_rows, 3),
        f.ACTION: torch.zeros(num_rows, dtype=torch.int64),
        f.LOG_PROB: torch.zeros(num_rows),
        f.ADVANTAGE: torch.zeros(num_rows),
    }
    return {**given, **{name: torch.tensor(value) for name, value in fields.items()}}


def test_the_value_loss_is_the_mean_over_streams_each_clipped_by_itself() -> None:
    ppo = make(two(), clip_value=0.2)
    # (R - V)^2, or (R - Vclip)^2 where that is more: 0.81, and 0.64 because the value may be 0.2 and no more.
    loss = ppo.value_loss(torch.tensor([[0.1, 0.9]]), torch.zeros(1, 2), torch.ones(1, 2))
    assert float(loss) == pytest.approx((0.81 + 0.64) / 2.0, abs=1e-6)


def test_each_head_has_the_gradient_of_its_own_stream() -> None:
    ppo = make(two(), value_coef=0.5)
    target = [[1.0, -2.0], [0.5, 3.0], [0.0, 0.25]]
    batch = minibatch(3, **{f.VALUE: [[0.0, 0.0]] * 3, f.RETURN: target})
    loss = ppo.loss(batch, 0.0)
    ppo.optimizer.clear()
    ppo.optimizer.add(loss.total)
    weight = ppo.policy.critic[-1].weight  # type: ignore[union-attr, operator]  # it is a list of layers
    with torch.no_grad():
        features = torch.tanh(torch.nn.functional.linear(batch[f.OBS], *ppo.policy.critic[0].parameters()))  # type: ignore[operator, index, union-attr]
        value = features @ weight.T + ppo.policy.critic[-1].bias  # type: ignore[operator, index, union-attr]
        assert value.shape == (3, 2)
        assert not torch.equal(weight[0], weight[1])
        # The loss is 0.5 times the mean of six squares.
        pull = 0.5 * 2.0 * (value - torch.tensor(target)) / 6.0
        torch.testing.assert_close(weight.grad, pull.T @ features, atol=1e-6, rtol=1e-5)
    assert float(loss.parts["train/value_loss"]) == pytest.approx(float((value - torch.tensor(target)).square().mean()))


def test_explained_variance_adds_up_what_is_explained() -> None:
    target = np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    # The first column has variance 8/3 and is missed by 0, 1 and 2, with variance 2/3; the second is foreseen.
    predicted = target - np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
    assert explained_variance(predicted, target) == pytest.approx(0.75)


def trainer(env: str = "CartPole-v1", algorithm: str = "ppo", **settings: Any) -> Trainer:
    chosen: dict[str, Any] = {
        "num_lanes": 2, "num_steps": 32, "batch_size": 32, "num_epochs": 2, "seed": 4, "hidden_sizes": [8],
        "writers": [], "events": [], "max_episode_steps": 20,
    }  # fmt: skip
    return Trainer(algorithm, env, **{**chosen, **settings})


def digest(**settings: Any) -> str:
    made = trainer(**settings)
    made.train(4 * 64)
    found = digest_of(made.state_dict())
    made.close()
    return found


@pytest.mark.parametrize("compiled", [None, False])
def test_one_signal_is_learned_the_same_either_way(compiled: bool | None) -> None:
    assert digest(reward_streams="averaged", compiled=compiled) == digest(compiled=compiled)


def test_each_of_several_streams_is_reported() -> None:
    made = trainer(reward_signals=TWO, reward_streams="averaged")
    assert made.policy.num_values == 2
    assert made._stage_collect()
    rollout = made.batch.rollout  # type: ignore[union-attr]  # it was collected
    assert rollout.array(f.VALUE).shape == (33, 2, 2)
    made.algorithm.estimate(made.batch)
    value, reward = rollout.array(f.VALUE)[:-1], -0.3 * rollout.array(f.LOG_PROB)[:-1]
    metrics = made.algorithm.update(made.batch, Progress(1000))
    assert metrics["value/extrinsic"] == pytest.approx(float(value[..., 0].mean()), rel=1e-4)
    assert metrics["value/surprise"] == pytest.approx(float(value[..., 1].mean()), rel=1e-4)
    assert metrics["reward/extrinsic"] == 1.0
    assert metrics["reward/surprise"] == pytest.approx(float(reward.mean()), rel=1e-4)
    made.close()


def test_a_single_stream_is_not_reported_by_itself() -> None:
    alone = trainer(reward_streams="averaged")
    assert alone._stage_collect()
    alone.algorithm.estimate(alone.batch)
    metrics = alone.algorithm.update(alone.batch, Progress(1000))
    assert not [name for name in metrics if name.startswith(("value/", "reward/"))]
    alone.close()


def test_what_follows_a_true_end_is_valued_too() -> None:
    made = trainer(reward_signals=TWO, reward_streams="averaged", num_steps=64, max_episode_steps=500)
    assert made._stage_collect()
    rollout = made.batch.rollout  # type: ignore[union-attr]  # it was collected
    ended = rollout.array(f.TERMINATED)[:-1]
    assert ended.any()
    last = rollout.final.array(f.OBS)[rollout.array(f.FINAL_INDEX)[:-1][ended]]
    with torch.no_grad():
        expected = made.policy.critic(torch.from_numpy(last)).numpy()
    np.testing.assert_allclose(rollout.array(f.FINAL_VALUE)[:-1][ended], expected, rtol=1e-5)
    made.close()


@pytest.mark.parametrize("placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_streams_are_learned_the_same_wherever_acting_happens(placement: str) -> None:
    streams = {"reward_signals": TWO, "reward_streams": "averaged"}
    assert digest(**streams, placement=placement) == digest(**streams)


@pytest.mark.parametrize("memory", [None, {"cell": "gru", "size": 4}])
def test_streams_go_with_memory_and_are_learned_in_parts_the_same(memory: Any) -> None:
    streams = {"reward_signals": TWO, "reward_streams": "averaged", "memory": memory}
    whole = trainer("Pendulum-v1", **streams, clip_value=0.2, target_kl=10.0)
    parts = trainer("Pendulum-v1", **streams, clip_value=0.2, target_kl=10.0, micro_batch_size=32 if memory else 8)
    for each in (whole, parts):
        each.train(2 * 64)
        each.close()
    for one, other in zip(whole.policy.parameters(), parts.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


def test_kernels_are_left_out_and_it_is_said() -> None:
    ppo = make(two())
    accelerated = accelerate(ppo.policy, ppo)
    assert "reward_streams averaged" in accelerated.learning.fallback_reason
    assert "reward_streams averaged" in accelerated.acting.fallback_reason
    with pytest.raises(SettingsError, match=r"policy.compiled cannot be on: .*reward_streams averaged"):
        trainer(reward_signals=TWO, reward_streams="averaged", compiled=True)


def test_a_policy_that_was_accelerated_before_acts_plainly_afterwards() -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), SPEC, Rng(0))
    assert not accelerate(policy).acting.fallback_reason
    hidden = policy.critic[0].weight.clone()
    PPO(PPOSettings(reward_streams="averaged"), policy, two(), Rng(0))
    assert policy.accelerator is None
    assert accelerate(policy).acting.fallback_reason
    torch.testing.assert_close(policy.critic[0].weight, hidden, atol=0, rtol=0)


def test_what_one_critic_cannot_learn_is_refused_with_a_sentence() -> None:
    with pytest.raises(SettingsError, match=r"first\.gamma 0\.5, second\.gamma 0\.25.*reward_streams to averaged"):
        make(two(), reward_streams="summed")
    alone = {"new": Given([[0.0]], ignores_ends=True)}
    with pytest.raises(SettingsError, match=r"reward_signals\.new goes on after the end of an episode"):
        make(alone)
    with pytest.raises(SettingsError, match=r"new goes on after the end"):
        make({"first": Given([[0.0]]), **alone}, reward_streams="summed")
    assert "reward_streams" not in A2CSettings.model_fields
    with pytest.raises(SettingsError, match="reward_streams"):
        trainer(algorithm="grpo", reward_streams="averaged", group_size=2)
    policy = SoftActor(SoftActorSettings(hidden_sizes=(4,)), BehaviorSpec(box(2), box(1, low=-1.0, high=1.0)), Rng(0))
    with pytest.raises(SettingsError, match="a SoftActor says one value of each observation"):
        policy.split_values(2)


def run_file(**env: Any) -> RunFile:
    behavior = {
        "algorithm": {"type": "ppo", "batch_size": 32, "num_epochs": 2, "reward_streams": "averaged"},
        "policy": {"hidden_sizes": [8], "normalize_obs": True},
        "rollout": {"num_steps": 32},
        "reward_signals": TWO,
        "events": [],
    }
    env = {"type": "gym", "id": "CartPole-v1", "num_lanes": 2, "max_episode_steps": 20, **env}
    experiment = {"seed": 4, "budget": {"env_steps": 256}, "env": env, "behaviors": {"default": behavior}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


@pytest.mark.parametrize("env", [{}, {"vectorization": "native"}, {"max_episode_steps": 500}])
def test_stopped_anywhere_a_run_of_two_streams_ends_with_the_same_numbers(env: dict[str, Any]) -> None:
    assert_resumes_exactly(run_file(**env), stop_after_steps=[7, 40])


def test_everything_that_asks_a_policy_goes_with_several_values() -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,)), SPEC, Rng(0))
    obs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    alone, _ = policy.predict(obs)
    policy.split_values(2)
    np.testing.assert_array_equal(policy.predict(obs)[0], alone)
    step = policy.get_action(TensorDict({"obs": torch.from_numpy(obs)}, batch_size=[4]))
    expected = policy.critic(torch.from_numpy(obs))
    assert step["value"].shape == (4, 2)
    torch.testing.assert_close(policy.get_value(step.clone())["value"], expected)
    acted = ActingModule(policy)({"obs": torch.from_numpy(obs)})
    np.testing.assert_array_equal(acted["action"].numpy(), alone)
    rollout = Rollout(SPEC, num_lanes=4, num_steps=2, fields=declared(values=2))
    rollout.storage[f.DONE][0] = rollout.storage[f.TERMINATED][0, :2] = True
    rollout.storage[f.FINAL_VALUE].fill_(3.0)
    assert transition_view(rollout)["next_value"][:, 0].tolist() == [[0.0, 0.0]] * 2 + [[3.0, 3.0]] * 2
