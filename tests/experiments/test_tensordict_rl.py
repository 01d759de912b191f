"""Trainers with a loss of their own in the core's loop: nip's objectives, and anything that returns `loss_*`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch import nn

from quintain.algorithms.loss_module import LossModuleAlgorithm, as_rows, joint_view
from quintain.algorithms.loss_settings import LossModuleSettings
from quintain.algorithms.settings import TeamPPOSettings, TeamREINFORCESettings
from quintain.algorithms.team_ppo import TeamPPO, TeamREINFORCE
from quintain.compat.nip.rl_objectives import (
    ClipPPOLossImproved,
    KLPENPPOLossImproved,
    Objective,
    ReinforceLossImproved,
    ValueEstimators,
)
from quintain.compat.nip.trainers.registry import register_trainer
from quintain.compat.nip.trainers.rl_tensordict_base import TensorDictRlTrainer
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.errors import SettingsError
from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.factory import build_scenario_instance, build_trainer
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.operators import policy_operator, value_operator
from quintain.experiments.run import run_experiment
from quintain.policies.team import AGENT, TeamPolicy
from quintain.services.checkpoints.catalog import load
from tests.experiments.test_team import make_env, make_policy

SMALL = {"frames_per_batch": 16, "minibatch_size": 8, "num_iterations": 4, "num_epochs": 2, "num_test_iterations": 1}


@register_trainer("own_clip")
class OwnClip(TensorDictRlTrainer):
    """PPO by nip's objective and its GAE, as nip's own trainer is written."""

    def _get_loss_module_and_gae(self) -> Any:
        loss_module = ClipPPOLossImproved(actor=self.policy_operator, critic=self.value_operator, clip_epsilon=0.2)
        loss_module.set_keys(action=[("agents", "action")], value=("agents", "value"))
        loss_module.make_value_estimator(
            ValueEstimators.GAE, gamma=self.hyper_params.rl.gamma, lmbda=self.hyper_params.rl.lmbda
        )
        return loss_module, loss_module.value_estimator


class Scaled(Objective):
    """A parameter, a buffer and a backward of its own."""

    count: torch.Tensor

    def __init__(self, actor: Any) -> None:
        super().__init__()
        self.actor = actor
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, tensordict: Any) -> Any:
        self.count += 1
        log_prob = self.actor.get_dist(tensordict).log_prob(tensordict["agents", "action"])
        gain = log_prob * tensordict["agents", "advantage"].squeeze(-1)
        return TensorDict({"loss_actor": -gain.mean() * self.scale, "loss_scale": (self.scale - 2.0).square()})

    def backward(self, loss_vals: Any) -> None:
        super().backward(loss_vals)
        for parameter in self.parameters():
            # In the place of the gradient, as code that computes its own does.
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else 0.5 * parameter.grad


@register_trainer("own_scaled")
class OwnScaled(TensorDictRlTrainer):
    """A trainer without a GAE module, with state of its own."""

    stop_after = -1
    state: State

    @dataclass
    class State(TensorDictRlTrainer.State):
        seen: int = 0

    def _get_loss_module_and_gae(self) -> Any:
        return Scaled(self.policy_operator), None

    def _get_log_stats(self, rollouts: Any, mean_train_results: Any, *, train: bool = True) -> Any:
        self.state.seen += self.loop.progress.iteration
        reward = rollouts["next", "agents", "reward"].mean().item()
        return {**super()._get_log_stats(rollouts, mean_train_results, train=train), "mean_step_reward": reward}

    def train_iteration(self) -> bool:
        if self.loop.progress.iteration == OwnScaled.stop_after:
            self.loop.stop("the test")
        return super().train_iteration()


def params(trainer: str, seed: int = 6198, **given: Any) -> Any:
    return HyperParameters("find_the_plus", trainer, "generated", rl={**SMALL, **given}, seed=seed)


def saved(path: Path) -> dict[str, Any]:
    checkpoint = max((path / "checkpoints").glob("*-step-*"), key=lambda each: each.name)
    learner: dict[str, Any] = load(checkpoint).state["training"]["learners"]["default"]
    return learner


def collected(policy: TeamPolicy, env: Any, num_steps: int) -> Rollout:
    """Fills a block with random actions and made-up estimates."""
    rollout = Rollout(env.spec, policy.declare_fields(), num_lanes=env.num_lanes, num_steps=num_steps)
    generator = torch.Generator().manual_seed(2)
    obs, mask = env.reset(), env.action_mask()
    for t in range(num_steps + 1):
        rollout.write_obs(t, obs)
        rollout.write(f.ACTION_MASK, t, mask)
        rollout.storage[f.NOISE][t].uniform_(generator=generator)
        slot = rollout.slots[t]
        with torch.no_grad():
            policy.act(slot)
        if t < num_steps:
            result = env.step(policy.env_action(slot))
            rollout.write(f.REWARD, t, result.reward)
            rollout.write(f.TERMINATED, t, result.terminated)
            rollout.write(f.DONE, t, result.terminated)
            if result.terminated.any():
                [ended] = result.terminated.nonzero()
                rows = {f"obs.{name}": torch.from_numpy(each)[ended] for name, each in result.final_obs.items()}
                rollout.add_final_obs(t, ended, rows, rollout.policy_state)
            obs, mask = result.obs, result.action_mask
    rollout.storage[f.ADVANTAGE].normal_(generator=generator)
    rollout.storage[f.RETURN].normal_(generator=generator)
    rollout.storage[f.LOG_PROB].mul_(1.0 + 0.2 * torch.rand(rollout.storage[f.LOG_PROB].shape, generator=generator))
    rollout.storage[f.VALID].fill_(True)
    return rollout


@pytest.mark.parametrize("protocol", ["nip", "debate"])
def test_the_objective_has_the_gradient_of_team_ppo(protocol: str) -> None:
    env = make_env(protocol, 12)
    policy = make_policy(env)
    rollout = collected(policy, env, 6)
    settings = TeamPPOSettings(entropy_coef=0.01, value_coef=0.7, clip_coef=0.1)  # type: ignore[arg-type]
    names = [AGENT, "obs.seen", f.ACTION, f.ACTION_MASK, f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN]
    minibatch = {name: rollout.flat(name) for name in names}
    algorithm = TeamPPO(settings, policy)
    own = torch.autograd.grad(algorithm.loss(minibatch, 0.0).total, list(policy.parameters()))
    objective = ClipPPOLossImproved(
        policy_operator(policy), value_operator(policy), clip_epsilon=0.1, entropy_coef=0.01, critic_coef=0.7
    )
    out = objective(as_rows(joint_view(policy, rollout)))
    losses = torch.stack([out["loss_objective"], out["loss_entropy"], out["loss_critic"]]).sum()
    theirs = torch.autograd.grad(losses, list(policy.parameters()))
    assert max(float(each.abs().max()) for each in own) > 1e-3
    for one, other in zip(own, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["kl_penalty", "reinforce"])
def test_other_objectives_have_the_gradients_of_the_core(kind: str) -> None:
    env = make_env("debate", 12)
    policy = make_policy(env)
    rollout = collected(policy, env, 6)
    names = [AGENT, "obs.seen", f.ACTION, f.ACTION_MASK, f.LOG_PROB, f.VALUE, f.ADVANTAGE, f.RETURN]
    minibatch = {name: rollout.flat(name) for name in names}
    actor, critic = policy_operator(policy), value_operator(policy)
    algorithm: TeamPPO
    objective: Objective
    if kind == "kl_penalty":
        algorithm = TeamPPO(TeamPPOSettings(loss_type="kl_penalty", kl_beta=0.4, value_coef=0.7), policy)
        objective = KLPENPPOLossImproved(actor, critic, num_agents=3, beta=0.4, entropy_coef=0.0, critic_coef=0.7)
    else:
        algorithm = TeamREINFORCE(TeamREINFORCESettings(use_critic=True, value_coef=0.7), policy)
        objective = ReinforceLossImproved(actor, critic, critic_coef=0.7)
    own = torch.autograd.grad(algorithm.loss(minibatch, 0.0).total, list(policy.parameters()))
    out = objective(as_rows(joint_view(policy, rollout)))
    theirs = torch.autograd.grad(
        torch.stack([value for name, value in out.items() if name.startswith("loss_")]).sum(), list(policy.parameters())
    )
    assert max(float(each.abs().max()) for each in own) > 1e-3
    for one, other in zip(own, theirs, strict=True):
        assert torch.allclose(one, other, atol=1e-6, rtol=0)
    if isinstance(objective, KLPENPPOLossImproved):
        # The sampled divergence is far above the target of 0.01 for every agent.
        assert objective.beta.tolist() == pytest.approx([0.8, 0.8, 0.8])


def test_the_joint_view_shares_memory_and_has_rows_with_all_agents() -> None:
    env = make_env("debate", 12)
    policy = make_policy(env)
    rollout = collected(policy, env, 6)
    view = joint_view(policy, rollout)
    assert view.batch_size == (4, 6)
    assert view["agents", "sample_log_prob"].shape == (4, 6, 3)
    assert view["agents", "observation"].data_ptr() == rollout.storage["obs.seen"].data_ptr()
    # Row 2, step 3, agent 1 is lane 7.
    assert view["agents", "sample_log_prob"][2, 3, 1] == rollout.storage[f.LOG_PROB][3, 7]
    assert torch.equal(view["next", "agents", "reward"][2, 3, 1], rollout.storage[f.REWARD][3, 7, None])
    following = joint_view(policy, rollout, sees_next=True)["next", "agents"]
    ended = rollout.storage[f.DONE][:-1].nonzero()
    assert len(ended)
    t, lane = ended[0].tolist()
    row, agent = divmod(lane, 3)
    final = rollout.final.rows["obs.seen"][rollout.storage[f.FINAL_INDEX][t, lane]]
    assert torch.equal(following["observation"][row, t, agent], final)
    assert not torch.equal(final, rollout.storage["obs.seen"][t + 1, lane])


def test_the_estimator_is_the_recursion_of_the_core() -> None:
    env = make_env("nip", 8)
    policy = make_policy(env)
    rollout = collected(policy, env, 12)
    view = joint_view(policy, rollout, sees_next=True)
    objective = Objective()
    objective.make_value_estimator("gae", gamma=0.9, lmbda=0.8)
    assert objective.value_estimator is not None
    objective.value_estimator(view)
    value, reward, done = (rollout.storage[name] for name in (f.VALUE, f.REWARD, f.DONE))
    # By hand, backwards over the six steps: nothing is bootstrapped over an end.
    following = torch.zeros(8)
    for t in reversed(range(12)):
        alive = (~done[t]).float()
        following = reward[t] + 0.9 * alive * value[t + 1] - value[t] + 0.72 * alive * following
        assert torch.allclose(view["agents", "advantage"][:, t, :, 0].reshape(-1), following, atol=1e-5)


@pytest.mark.parametrize("trainer", ["own_clip", "own_scaled"])
def test_a_stopped_run_ends_as_one_that_was_not(trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_experiment(params(trainer), run_id="whole", output_dir=tmp_path).state == "finished"
    if trainer == "own_scaled":
        monkeypatch.setattr(OwnScaled, "stop_after", 2)
        assert run_experiment(params(trainer), run_id="part", output_dir=tmp_path).state == "stopped"
        monkeypatch.setattr(OwnScaled, "stop_after", -1)
    run_experiment(params(trainer), run_id="part", output_dir=tmp_path)
    whole, part = saved(tmp_path / "whole"), saved(tmp_path / "part")
    assert all(np.array_equal(each, part["policy"][name]) for name, each in whole["policy"].items())
    if trainer == "own_scaled":
        state = part["algorithm"]
        # 4 iterations of 2 epochs of 2 minibatches of 8 of the 16 frames.
        assert float(state["own_state"]["count"]) == 16
        assert float(state["own_state"]["scale"]) == float(whole["algorithm"]["own_state"]["scale"]) != 1.0
        # 0 + 1 + 2 + 3
        assert state["kept"]["state"]["seen"] == 6
    rows = [json.loads(line) for line in (tmp_path / "part" / "metrics.jsonl").read_text().splitlines()]
    assert 0.0 <= rows[-1]["test/mean_accuracy"] <= 1.0
    assert "test/prover.mean_episode_reward" in rows[-1]
    assert len(rows) == 5
    assert ("train/mean_step_reward" in rows[0]) == (trainer == "own_scaled")
    # A finished run is not tested again.
    run_experiment(params(trainer), run_id="part", output_dir=tmp_path)
    assert len((tmp_path / "part" / "metrics.jsonl").read_text().splitlines()) == 5


def test_tests_leave_training_as_it_is(tmp_path: Path) -> None:
    for name, tests, period in (("none", 0, 1000), ("many", 3, 1)):
        given = params("own_clip", num_test_iterations=tests)
        run_experiment(given, run_id=name, output_dir=tmp_path, rollout_sample_period=period, num_rollout_samples=3)
    assert len(list((tmp_path / "many" / "rollouts").iterdir())) == 4
    one, other = saved(tmp_path / "none"), saved(tmp_path / "many")
    assert all(np.array_equal(each, other["policy"][name]) for name, each in one["policy"].items())


def test_accuracies_of_a_test_are_those_of_its_data() -> None:
    """A verifier that always accepts is right with label 1 alone."""
    register_trainer("tested")(type("Tested", (TensorDictRlTrainer,), {}))
    given = params("tested", rollouts_per_iteration=200)
    settings = ExperimentSettings()
    trainer = build_trainer(given, build_scenario_instance(given, settings), settings)
    assert isinstance(trainer, TensorDictRlTrainer)
    env = trainer.scenario_instance.test_environment
    assert env is not None
    by_hand = dict.fromkeys(env.protocol.agent_names, f"{__name__}:always_accepts")
    trainer.connect(make_policy(env, hand_written_agents=by_hand))
    accuracies: dict[bytes, list[float]] = {}
    found = trainer._test_iteration(0, accuracies)
    # Eight boards with a plus, and one without.
    assert len(accuracies) == 9
    empty = np.zeros(8, np.float32).tobytes()
    assert {datum: set(each) for datum, each in accuracies.items()} == {
        datum: {0.0} if datum == empty else {1.0} for datum in accuracies
    }
    every = [each for accuracy in accuracies.values() for each in accuracy]
    assert len(every) == 200
    assert found["test_mean_accuracy"] == pytest.approx(sum(every) / 200)


def always_accepts(seen: torch.Tensor, output_size: int) -> torch.Tensor:
    """Logits of an agent that accepts where it may."""
    logits = torch.zeros(len(seen), output_size)
    logits[:, -2] = 50.0
    return logits


def test_what_is_no_loss_is_refused(tmp_path: Path) -> None:
    env = make_env("nip", 4)
    policy = make_policy(env)
    settings = LossModuleSettings(function="a:b")
    with pytest.raises(SettingsError, match=r"E0271|expected a loss module"):
        LossModuleAlgorithm(settings, policy, None, Rng(0), lambda policy: ("loss", None))  # type: ignore[arg-type,return-value]

    class NoLoss(nn.Module):
        def forward(self, tensordict: Any) -> Any:
            return {"objective": torch.zeros(())}

    algorithm = LossModuleAlgorithm(settings, policy, None, Rng(0), lambda policy: (NoLoss(), None))
    with pytest.raises(SettingsError, match="whose name begins with loss_"):
        algorithm.step_down(joint_view(policy, collected(policy, env, 2)).reshape(-1), 0.1)

    @register_trainer("lossless")
    class Lossless(TensorDictRlTrainer):
        """Defines nothing."""

    with pytest.raises(SettingsError, match="define _get_loss_module_and_gae"):
        run_experiment(params("lossless"), output_dir=tmp_path)
    with pytest.raises(SettingsError, match="reads no actions; expected one of action"):
        Objective().set_keys(actions="x")
