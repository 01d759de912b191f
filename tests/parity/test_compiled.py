"""Training by kernels is the training that the plain path does: the same run to rounding, and itself bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain import RunFile, Trainer
from quintain.services.checkpoints.state_files import digest_of
from quintain.testing import assert_resumes_exactly

SMALL = {"seed": 3, "num_lanes": 4, "num_steps": 32, "num_epochs": 3, "batch_size": 60, "max_episode_steps": 17}
BUDGET = 4 * 4 * 32

CASES: dict[str, dict[str, Any]] = {
    "discrete": {"env": "CartPole-v1", "entropy_coef": 0.01},
    "continuous": {"env": "Pendulum-v1", "clip_value": 0.2},
    "normalized": {"env": "Pendulum-v1", "normalize_obs": True, "activation": "relu"},
    "lstm": {"env": "CartPole-v1", "memory": {"cell": "lstm", "size": 8}, "batch_size": 64},
    "gru": {"env": "Pendulum-v1", "memory": {"cell": "gru", "size": 8}, "batch_size": 32, "normalize_obs": True},
    "many lanes": {"env": "CartPole-v1", "num_lanes": 30, "num_steps": 8, "normalize_obs": True},
}


def trained(case: str, **settings: Any) -> Trainer:
    given = {**SMALL, **CASES[case], **settings}
    trainer = Trainer("ppo", given.pop("env"), total_timesteps=BUDGET, writers=[], events=[], **given)
    trainer.train()
    trainer.close()
    return trainer


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(trainer.policy.state_dict())


SAC = {"seed": 3, "batch_size": 32, "hidden_sizes": [16, 16], "learning_starts": 40, "max_episode_steps": 17}
SAC_CASES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "several steps and lanes": {"num_lanes": 2, "updates_per_step": 1.5, "num_return_steps": 3},
    "normalized": {"normalize_obs": True, "activation": "tanh", "entropy_coef": 0.2, "buffer_size": 70},
}


def soft_trained(case: str, **settings: Any) -> Trainer:
    given = {**SAC, **SAC_CASES[case], **settings}
    trainer = Trainer("sac", "Pendulum-v1", total_timesteps=150, writers=[], events=[], **given)
    trainer.train()
    trainer.close()
    return trainer


@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_plain_run_to_rounding(case: str) -> None:
    compiled, plain = trained(case), trained(case, compiled=False)
    assert compiled.paths == {"acting": "compiled", "learning": "compiled"}
    assert plain.paths == dict.fromkeys(("acting", "learning"), "plain: policy.compiled is off")
    for name, tensor in weights_of(plain).items():
        np.testing.assert_allclose(weights_of(compiled)[name], tensor, rtol=2e-3, atol=2e-3, err_msg=name)


def test_rounding_is_what_makes_the_difference() -> None:
    """Guards the test above: the two paths are not secretly one, and another seed is further away than rounding."""
    compiled, plain, other = trained("discrete"), trained("discrete", compiled=False), trained("discrete", seed=4)
    gap, far = (
        max(float((weights_of(plain)[name] - weights_of(x)[name]).abs().max()) for name in weights_of(plain))
        for x in (compiled, other)
    )
    assert 0.0 < gap < 2e-3
    assert far > 0.1


@pytest.mark.parametrize("case", CASES)
def test_the_same_seed_gives_the_same_digest(case: str) -> None:
    digests = {digest_of(trained(case).state_dict()) for _ in range(2)}
    assert len(digests) == 1


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_exact(case: str) -> None:
    given = {**SMALL, **CASES[case]}
    given = {"total_timesteps": BUDGET, "events": [], **given}
    run_file = RunFile.from_names("ppo", given.pop("env"), *(f"{name}={value}" for name, value in given.items()))
    assert_resumes_exactly(run_file, stop_after_steps=[13, 40])


@pytest.mark.parametrize("case", SAC_CASES)
def test_a_run_of_sac_is_the_plain_run_to_rounding(case: str) -> None:
    compiled, plain, other = soft_trained(case), soft_trained(case, compiled=False), soft_trained(case, seed=4)
    assert compiled.paths == {"acting": "compiled", "learning": "compiled"}
    assert plain.paths == dict.fromkeys(("acting", "learning"), "plain: policy.compiled is off")
    trained_weights = plain.algorithm.optimizer.flat.detach()
    gap, far = (float((trained_weights - x.algorithm.optimizer.flat.detach()).abs().max()) for x in (compiled, other))
    # Adam turns gradients of any size into steps of one, so that rounding grows; another seed is much further away.
    assert 0.0 < gap < 2e-2 < 0.1 < far


@pytest.mark.parametrize("case", SAC_CASES)
def test_the_same_seed_gives_the_same_digest_of_sac_with_any_threads(case: str) -> None:
    one, again, two = (soft_trained(case, threads=threads) for threads in (1, 1, 2))
    torch.set_num_threads(1)
    assert len({digest_of(trainer.state_dict()) for trainer in (one, again, two)}) == 1
    assert two.algorithm.accelerator.second_thread.pool is not None


@pytest.mark.slow
@pytest.mark.parametrize("case", SAC_CASES)
def test_a_resumed_run_of_sac_is_exact(case: str) -> None:
    given = {"total_timesteps": 150, "events": [], **SAC, **SAC_CASES[case]}
    run_file = RunFile.from_names("sac", "Pendulum-v1", *(f"{name}={value}" for name, value in given.items()))
    assert_resumes_exactly(run_file, stop_after_steps=[30, 77])
