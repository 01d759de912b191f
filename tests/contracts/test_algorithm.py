"""What every algorithm promises: it estimates, it changes the policy, and its state continues identically."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np
import pytest
import torch

from quintain.core import registry
from quintain.data import fields as f
from quintain.errors import SpecMismatch
from quintain.testing import assert_all_state_saved, assert_resumes_exactly, differences
from quintain.trainers import Trainer
from tests.contracts.cases import (
    AGENT_ALGORITHMS,
    ALGORITHMS,
    ENVS,
    NUM_LANES,
    NUM_STEPS,
    REPLAYING,
    TEAMS,
    agents_file,
    fits,
    make_trainer,
    run_file,
)


def test_every_registered_algorithm_has_a_case() -> None:
    assert {*ALGORITHMS, *AGENT_ALGORITHMS} == set(registry.names("algorithm"))


def collected(algorithm: str) -> Trainer:
    if algorithm in AGENT_ALGORITHMS:
        joint = make_trainer(agents_file(algorithm))
        assert isinstance(joint, Trainer)
        trainer = joint.learners["Door"]
    else:
        # Without a time limit, so that some lanes fall earlier than others.
        env = None if algorithm in ("td3", *TEAMS) else {"type": "gym", "id": "CartPole-v1"}
        trainer = make_trainer(run_file(env, algorithm=algorithm))
    assert trainer._stage_collect()
    return trainer


@pytest.mark.parametrize("algorithm", [name for name in (*ALGORITHMS, *AGENT_ALGORITHMS) if name not in REPLAYING])
def test_estimate_writes_finite_advantages_for_every_step(algorithm: str) -> None:
    trainer = collected(algorithm)
    assert trainer.batch is not None
    trainer.batch.rollout.storage[f.ADVANTAGE].fill_(math.nan)
    trainer._stage_estimate()
    assert torch.isfinite(trainer.batch.rollout[f.ADVANTAGE][:, :-1]).all()


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, *AGENT_ALGORITHMS])
def test_update_changes_the_policy_and_reports_finite_numbers(algorithm: str) -> None:
    trainer = collected(algorithm)
    assert trainer.batch is not None
    trainer._stage_estimate()
    # Without a baseline the value heads of a team do not learn.
    actor = trainer.policy if algorithm in TEAMS else trainer.policy.actor  # type: ignore[attr-defined]
    acting = [parameter for name, parameter in actor.named_parameters() if "value" not in name]
    before = [parameter.detach().clone() for parameter in acting]
    metrics = trainer.algorithm.update(trainer.batch, trainer.progress)
    assert all(not torch.equal(old, new) for old, new in zip(before, acting, strict=True))
    assert metrics
    assert all(isinstance(value, float | int) and math.isfinite(value) for value in metrics.values())
    assert all(name.startswith("train/") for name in metrics)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_loaded_state_updates_identically(algorithm: str) -> None:
    one, other = make_trainer(run_file(algorithm=algorithm)), make_trainer(run_file(algorithm=algorithm))
    one.advance()
    other.policy.load_state_dict({key: value.clone() for key, value in one.policy.state_dict().items()})
    other.algorithm.load_state_dict(one.algorithm.state_dict())
    # Both learn from the same batch, so only the policy and the algorithm's own memory can make a difference.
    assert one.batch is not None
    for trainer in (one, other):
        trainer.algorithm.update(one.batch, one.progress)
    assert not list(differences(one.policy.state_dict(), other.policy.state_dict()))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_state_is_complete(algorithm: str) -> None:
    assert_all_state_saved(make_trainer(run_file(algorithm=algorithm, cycles=5)))


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [(algorithm, env) for algorithm in ALGORITHMS for env in ENVS if fits(algorithm, env)],
)
def test_an_interrupted_run_is_the_run_that_was_not(algorithm: str, env: str) -> None:
    # In the second rollout, then in the rest of it: 3 cycles of 32 steps are 96.
    settings = run_file(ENVS[env], algorithm, cycles=3)
    assert_resumes_exactly(settings, stop_after_steps=[NUM_STEPS + 5, 20])


@pytest.mark.parametrize("algorithm", AGENT_ALGORITHMS)
def test_an_interrupted_run_of_agents_is_the_run_that_was_not(algorithm: str) -> None:
    assert_resumes_exactly(agents_file(algorithm), stop_after_steps=[5, 11])


@pytest.mark.parametrize("algorithm", AGENT_ALGORITHMS)
def test_a_loaded_state_of_agents_goes_on_identically(algorithm: str) -> None:
    one, other = make_trainer(agents_file(algorithm)), make_trainer(agents_file(algorithm))
    one.advance()
    saved = one.state_dict()
    other.load_state_dict(saved)
    one.advance()
    # The process-wide generators belong to both trainers, and the first has just moved them.
    other.global_streams.load_state_dict(saved["training"]["global_streams"])
    other.advance()
    assert not list(differences(one.state_dict()["training"], other.state_dict()["training"]))


def test_the_default_update_is_one_step_down_the_gradient_of_the_whole_batch(user_parts: ModuleType) -> None:
    trainer = collected("my_reinforce")
    batch, policy, algorithm = trainer.batch, trainer.policy, trainer.algorithm
    assert batch is not None
    trainer._stage_estimate()
    rows = {name: batch.rollout.flat(name).clone() for name in (f.OBS, f.ACTION, f.ADVANTAGE)}
    now = policy.evaluate_actions(rows)
    loss = -(now[f.LOG_PROB] * rows[f.ADVANTAGE]).mean() - 0.01 * now[f.ENTROPY].mean()
    actor = dict(policy.actor.named_parameters())  # type: ignore[attr-defined]  # the default policy
    gradients = dict(zip(actor, torch.autograd.grad(loss, list(actor.values())), strict=True))
    norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients.values()))
    before = {name: parameter.detach().clone() for name, parameter in actor.items()}

    metrics = algorithm.update(batch, trainer.progress)

    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    scale = min(1.0, 0.5 / (float(norm) + 1e-6))
    for name, parameter in actor.items():
        clipped = gradients[name] * scale
        # Adam's first step is lr * g / (|g| + eps): the moments' bias corrections cancel.
        expected = before[name] - 3e-4 * clipped / (clipped.abs() + 1e-5)
        torch.testing.assert_close(parameter, expected, atol=2e-6, rtol=0)


def test_rewards_of_another_shape_are_refused(user_parts: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = collected("ppo")
    assert trainer.batch is not None
    signal = trainer.algorithm.signals["extrinsic"]
    wrong = np.zeros((NUM_LANES, NUM_STEPS), dtype=np.float32)
    monkeypatch.setattr(signal, "evaluate", lambda rollout: wrong)
    with pytest.raises(SpecMismatch, match=r"'extrinsic' returned shape \(4, 32\), expected \(32, 4\)"):
        trainer.algorithm.estimate(trainer.batch)
