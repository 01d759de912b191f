"""Kernels are plugged in from outside: nothing is compiled before, everything that can be is afterwards."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain import compiled
from quintain.algorithms.a2c import A2C
from quintain.algorithms.ppo import PPO
from quintain.algorithms.returns import generalized_advantages
from quintain.algorithms.sac import SAC
from quintain.algorithms.settings import A2CSettings, PPOSettings, SACSettings
from quintain.cli.app import main
from quintain.compiled.acting import CompiledActing
from quintain.compiled.plug import Accelerated, accelerate
from quintain.core.rng import Rng
from quintain.data.differences import differences
from quintain.data.spec import BehaviorSpec, box
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import Policy
from quintain.policies.settings import ActorCriticSettings, SoftActorSettings
from quintain.policies.soft_actor import SoftActor
from quintain.runs.results import evaluate

SPEC = BehaviorSpec(box(3), box(2, low=-1.0, high=1.0))
OBS = np.array([0.5, -1.0, 2.0], np.float32)


def actor_critic(**settings: Any) -> ActorCritic:
    return ActorCritic(ActorCriticSettings(hidden_sizes=(8,), **settings), SPEC, Rng(1))


def ppo(policy: Policy) -> PPO:
    return PPO(PPOSettings(), policy, None, Rng(2))


def sac() -> SAC:
    return SAC(SACSettings(), SoftActor(SoftActorSettings(hidden_sizes=(8,)), SPEC, Rng(1)), None, Rng(2))


def test_the_door_of_the_room_is_the_function() -> None:
    assert compiled.accelerate is accelerate


def test_made_by_hand_everything_is_plain() -> None:
    for algorithm in (ppo(actor_critic(compiled=True)), sac()):
        assert algorithm.policy.accelerator is None
        assert algorithm.accelerator is None
        assert algorithm.optimizer.kernel is None
        assert algorithm.generalized_advantages is generalized_advantages


def test_both_halves_are_taken_over_and_it_is_said() -> None:
    for algorithm in (ppo(actor_critic()), sac()):
        accelerated = accelerate(algorithm.policy, algorithm)
        assert accelerated.paths == {"acting": "compiled", "learning": "compiled"}
        assert algorithm.policy.accelerator is not None
        assert algorithm.accelerator is not None
        assert algorithm.optimizer.kernel is not None


def test_each_half_falls_back_for_a_reason_of_its_own() -> None:
    policy = actor_critic()
    algorithm = A2C(A2CSettings(), policy, None, Rng(2))
    assert accelerate(policy, algorithm).paths == {
        "acting": "compiled",
        "learning": "plain: this algorithm has no kernels",
    }
    assert algorithm.optimizer.kernel is None
    assert accelerate(policy).paths == {"acting": "compiled", "learning": "plain: there is no algorithm"}
    assert Accelerated().paths == dict.fromkeys(("acting", "learning"), "plain: it was not accelerated")


def test_settings_of_ppo_do_not_make_an_algorithm_of_ones_own_a_ppo() -> None:
    class Own(A2C):
        pass

    policy = actor_critic()
    algorithm = Own(PPOSettings(), policy, None, Rng(2))  # type: ignore[arg-type]  # that is the test
    assert accelerate(policy, algorithm).learning.fallback_reason == "this algorithm has no kernels"


def test_what_a_checkpoint_holds_does_not_depend_on_the_plug() -> None:
    for make in (lambda: ppo(actor_critic()), sac):
        plain, fast = make(), make()
        accelerate(fast.policy, fast)
        assert list(differences(plain.state_dict(), fast.state_dict())) == []
        fast.load_state_dict(plain.state_dict())
        assert fast.accelerator is not None


def test_a_copy_acts_by_kernels_of_its_own() -> None:
    policy = actor_critic()
    accelerate(policy)
    copied = copy.deepcopy(policy)
    assert isinstance(copied.accelerator, CompiledActing)
    assert copied.accelerator is not policy.accelerator
    before, _ = policy.predict(OBS)
    np.testing.assert_array_equal(copied.predict(OBS)[0], before)
    with torch.no_grad():
        copied.actor[-1].bias.add_(0.25)
    np.testing.assert_allclose(copied.predict(OBS)[0], before + 0.25, rtol=1e-5)
    np.testing.assert_array_equal(policy.predict(OBS)[0], before)


def test_kernels_that_were_plugged_in_are_taken_out_where_they_may_not_act() -> None:
    for algorithm in (ppo(actor_critic()), sac()):
        policy = algorithm.policy
        accelerate(policy, algorithm)
        policy.settings = policy.settings.model_copy(update={"compiled": False})
        assert set(accelerate(policy, algorithm).paths.values()) == {"plain: policy.compiled is off"}
        assert policy.accelerator is None
        assert algorithm.accelerator is None
        assert algorithm.optimizer.kernel is None
        assert algorithm.generalized_advantages is generalized_advantages


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_stored_policy_is_evaluated_as_it_was_trained(
    is_compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["total_timesteps=32", "num_lanes=2", "num_steps=16", "batch_size=16", "hidden_sizes=[8]", "events=[]"]
    compiled_or_not = f"compiled={str(is_compiled).lower()}"
    assert main(["train", "ppo", "CartPole-v1", *words, compiled_or_not, "--run-id", "a", "--quiet"]) == 0
    calls = []
    act = CompiledActing.act
    monkeypatch.setattr(CompiledActing, "act", lambda *args, **named: (calls.append(1), act(*args, **named))[1])
    evaluate(tmp_path / "runs", "a", num_episodes=1, deterministic=True, seed=1)
    assert bool(calls) is is_compiled
