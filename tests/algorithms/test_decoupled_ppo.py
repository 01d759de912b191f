"""Decoupled PPO clips around the policy at the start of the update, and weighs by how far that is from the actor's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.compiled.plug import accelerate
from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import gather_fields
from quintain.data.rollout import Batch, Rollout
from quintain.errors import SettingsError
from quintain.policies.settings import MemorySettings
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.policies.twins import rollout_for, twins

LSTM = {"cell": "lstm", "size": 6}
TRANSFORMER = {"cell": "transformer", "size": 8, "window": 5, "context_length": 3}


def test_the_loss_of_four_steps_is_that_worked_out_by_hand() -> None:
    ppo = Trainer("ppo", "CartPole-v1", stale_correction="decoupled", writers=[], events=[]).algorithm
    assert isinstance(ppo, PPO)
    # Probabilities of one action each: when it was sampled, at the start of the update, and now.
    behaviour, proximal, now = [0.5, 0.2, 0.4, 0.1], [0.6, 0.3, 0.2, 0.9], [0.9, 0.3, 0.1, 0.9]
    advantage = [1.0, 2.0, -1.0, 0.5]
    # Weights proximal / behaviour: 1.2, 1.5, 0.5, and 9 of which 5 are left. Ratios now / proximal: 1.5, 1, 0.5 and 1,
    # clipped at 1.2 (positive advantage) and 0.8 (negative). -(1.2*1.2*1 + 1.5*1*2 - 0.5*0.8*1 + 5*1*0.5) / 4
    expected = -(1.44 + 3.0 - 0.4 + 2.5) / 4
    log = {name: torch.tensor(given).log() for name, given in (("b", behaviour), ("p", proximal), ("n", now))}
    weight = (log["p"] - log["b"]).exp().clamp(max=ppo.settings.max_behavior_weight)
    then = {f.LOG_PROB: log["b"], f.PROXIMAL: log["p"], f.BEHAVIOR_WEIGHT: weight, f.ADVANTAGE: torch.tensor(advantage)}
    found = ppo.surrogate(then, {f.LOG_PROB: log["n"], f.ENTROPY: torch.zeros(4)}, 0.0)
    assert float(found.parts["train/policy_loss"]) == pytest.approx(expected, abs=1e-6)
    # Both are about the proximal policy: how far this update has moved.
    assert float(found.parts["train/clip_fraction"]) == 0.5
    ratios = [1.5, 1.0, 0.5, 1.0]
    assert float(found.parts["train/approx_kl"]) == pytest.approx(
        np.mean([r - 1 - math.log(r) for r in ratios]), abs=1e-6
    )


def pair(case: str, memory: dict[str, Any] | None = None, **settings: Any) -> tuple[PPO, PPO]:
    """Returns the same decoupled PPO by kernels and by autograd."""
    options = {"stale_correction": "decoupled", "batch_size": 24, "num_epochs": 2, **settings}
    policies = twins(case, None if memory is None else MemorySettings(**memory))
    compiled, plain = (PPO(PPOSettings(**options), policy, rng=Rng(3)) for policy in policies)
    assert accelerate(compiled.policy, compiled).learning.fallback_reason == ""
    assert accelerate(plain.policy, plain).learning.fallback_reason
    return compiled, plain


def stale_batch(ppo: PPO, spread: float = 0.3) -> Batch:
    """Makes a batch whose log-probabilities are those of another policy, with steps that do not count."""
    policy: Any = ppo.policy
    ready = rollout_for(policy, 6, 12)
    rollout = Rollout(policy.spec, gather_fields(policy.spec, policy, ppo), num_lanes=6, num_steps=12)
    rollout.begin(1, version=0)
    for name, array in ready.arrays.items():
        rollout.arrays[name][...] = array
    rollout.policy_state.copy_(ready.policy_state)
    state = rollout.policy_state.clone()
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot, state)
    draw = np.random.default_rng(4)
    rollout.arrays[f.LOG_PROB][...] += draw.normal(size=(13, 6)) * spread
    for name in (f.ADVANTAGE, f.RETURN):
        rollout.arrays[name][...] = draw.normal(size=(13, 6))
    rollout.arrays[f.VALID][...] = draw.random((13, 6)) < 0.9
    return Batch(rollout)


@pytest.mark.parametrize("memory", [None, LSTM], ids=["no memory", "lstm"])
def test_what_is_written_is_what_the_policy_says_now(memory: dict[str, Any] | None) -> None:
    _, ppo = pair("masked hybrid", memory, max_behavior_weight=1.25)
    batch = stale_batch(ppo)
    rollout = batch.rollout
    acted = rollout.arrays[f.LOG_PROB][:-1].copy()
    found = ppo.write_proximal(batch)
    # Acting again gives the log-probabilities of the same actions by the current policy, one step at a time.
    state = rollout.policy_state.clone()
    again = rollout_for(ppo.policy, 6, 12)  # type: ignore[arg-type]  # an actor-critic
    with torch.no_grad():
        for slot in again.slots:
            ppo.policy.act(slot, state)
    now = again.arrays[f.LOG_PROB][:-1]
    np.testing.assert_array_equal(rollout.arrays[f.LOG_PROB][:-1], acted)
    np.testing.assert_allclose(rollout.arrays[f.PROXIMAL][:-1], now, atol=1e-5)
    ratio = np.exp(now.astype(np.float64) - acted)
    assert (ratio > 1.25).any()
    np.testing.assert_allclose(rollout.arrays[f.BEHAVIOR_WEIGHT][:-1], ratio.clip(max=1.25), atol=1e-5)
    counted = ratio[rollout.arrays[f.VALID][:-1]]
    assert found["train/behavior_ratio"] == pytest.approx(counted.mean(), abs=1e-5)
    assert found["train/behavior_ratio_max"] == pytest.approx(counted.max(), abs=1e-4)
    worth = counted.sum() ** 2 / (len(counted) * np.square(counted).sum())
    assert found["train/effective_sample_size"] == pytest.approx(worth, abs=1e-5)


@pytest.mark.parametrize("memory", [None, LSTM], ids=["no memory", "lstm"])
def test_plain_ppo_says_how_far_stale_data_is_from_its_policy(memory: dict[str, Any] | None) -> None:
    # One minibatch has all steps, so that the first has; the second epoch is of a policy that has learned.
    both = pair("masked hybrid", memory, stale_correction="none", batch_size=72, learning_rate=0.01)
    batch = stale_batch(both[1])
    state, again = batch.rollout.policy_state.clone(), rollout_for(both[1].policy, 6, 12)  # type: ignore[arg-type]
    with torch.no_grad():
        for slot in again.slots:
            both[1].policy.act(slot, state)
    moved = again.arrays[f.LOG_PROB][:-1].astype(np.float64) - batch.rollout.arrays[f.LOG_PROB][:-1]
    ratio = np.exp(moved)[batch.rollout.arrays[f.VALID][:-1]]
    worth = ratio.sum() ** 2 / (len(ratio) * np.square(ratio).sum())
    for ppo in both:
        progress = Progress(1000)
        progress.version = 1
        found = ppo.update(batch, progress)
        assert found["train/behavior_ratio"] == pytest.approx(ratio.mean(), abs=1e-4)
        assert found["train/effective_sample_size"] == pytest.approx(worth, abs=1e-4)
        # The same batch, as if the current version had collected it.
        fresh = ppo.update(batch, Progress(1000))
        assert not {"train/behavior_ratio", "train/effective_sample_size"} & {*fresh}


@pytest.mark.parametrize("memory", [None, LSTM], ids=["no memory", "lstm"])
@pytest.mark.parametrize(
    "options", [{}, {"clip_per_component": True, "max_behavior_weight": 1.1}], ids=["", "components"]
)
def test_kernels_end_with_the_weights_of_autograd(memory: dict[str, Any] | None, options: dict[str, Any]) -> None:
    compiled, plain = pair("hybrid", memory, **options)
    batch = stale_batch(plain)
    reports = [ppo.update(batch, Progress(1000)) for ppo in (compiled, plain)]
    assert [*reports[0]] == [*reports[1]]
    for name, value in reports[1].items():
        assert reports[0][name] == pytest.approx(value, rel=2e-3, abs=1e-5), name
    learned = plain.policy.state_dict()
    for name, parameter in learned.items():
        np.testing.assert_allclose(compiled.policy.state_dict()[name], parameter, atol=1e-4, err_msg=name)
    # And others than those of plain PPO on the same batch.
    other = PPO(
        plain.settings.model_copy(update={"stale_correction": "none"}),
        twins("hybrid", None if memory is None else MemorySettings(**memory))[1],
        rng=Rng(3),
    )
    other.update(batch, Progress(1000))
    assert max(float((value - other.policy.state_dict()[name]).abs().max()) for name, value in learned.items()) > 1e-4


def lanes(stale_correction: str, memory: dict[str, Any] | None, max_staleness: int = 0) -> RunFile:
    learner = {
        "algorithm": {
            "type": "ppo", "batch_size": 32, "num_epochs": 3, "learning_rate": 2e-2,
            "stale_correction": stale_correction,
        },
        "policy": {"hidden_sizes": [8], "memory": memory, "compiled": False},
        "rollout": {"num_steps": 16, "max_staleness": max_staleness},
        "events": [],
    }  # fmt: skip
    env = {"type": "gym", "id": "CartPole-v1", "num_lanes": 4}
    experiment = {"env": env, "budget": {"env_steps": 320}, "behaviors": {"default": learner}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def agents(stale_correction: str, memory: dict[str, Any] | None, max_staleness: int = 0) -> RunFile:
    learner = {
        "algorithm": {
            "type": "ppo", "batch_size": 32, "num_epochs": 3, "learning_rate": 2e-2,
            "stale_correction": stale_correction,
        },
        "policy": {"hidden_sizes": [8], "memory": memory, "compiled": False},
        "rollout": {"buffer_size": 64, "time_horizon": 4, "max_staleness": max_staleness},
    }  # fmt: skip
    env = {"type": "agents", "id": "quintain.envs.agents.memory_tasks:recall"}
    experiment = {"env": env, "budget": {"env_steps": 320}, "behaviors": {"Recall": learner}}
    return RunFile.from_mapping({"experiment": experiment, "run": {"writers": []}})


def groups(stale_correction: str, memory: dict[str, Any] | None, max_staleness: int = 0) -> RunFile:
    """The same by POCA, whose critic is its own."""
    words = agents(stale_correction, memory, max_staleness).to_dict()
    learner = words["experiment"]["behaviors"]["Recall"]
    learner["policy"] = {"type": "actor_only", "hidden_sizes": [8], "memory": memory}
    learner["algorithm"] = {**{k: learner["algorithm"][k] for k in ("batch_size", "stale_correction")}, "type": "poca"}
    return RunFile.from_mapping(words)


def trained(run_file: RunFile) -> tuple[Trainer, dict[str, float]]:
    run = Run(run_file, [])
    trainer = assemble(run_file, run, run.writer)
    reports: list[dict[str, float]] = []
    update = trainer.algorithm.update
    trainer.algorithm.update = lambda *given: reports.append(update(*given)) or reports[-1]  # type: ignore[method-assign,func-returns-value]
    trainer.train()
    trainer.close()
    return trainer, reports[-1]


@pytest.mark.parametrize("memory", [None, LSTM, TRANSFORMER], ids=["no memory", "lstm", "transformer"])
@pytest.mark.parametrize("world", [lanes, agents, groups])
def test_fresh_data_gives_plain_ppo_to_rounding(world: Any, memory: dict[str, Any] | None) -> None:
    (plain, _), (decoupled, report) = (trained(world(how, memory)) for how in ("none", "decoupled"))
    for name, parameter in plain.policy.state_dict().items():
        torch.testing.assert_close(decoupled.policy.state_dict()[name], parameter, atol=2e-4, rtol=0.0, msg=name)
    assert report["train/behavior_ratio"] == pytest.approx(1.0, abs=1e-5)
    assert report["train/behavior_ratio_max"] == pytest.approx(1.0, abs=1e-4)
    assert report["train/effective_sample_size"] == pytest.approx(1.0, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("world", "memory"), [(lanes, None), (agents, TRANSFORMER)], ids=["lanes", "agents"])
def test_stale_data_is_weighed_and_runs_resume_exactly(world: Any, memory: dict[str, Any] | None) -> None:
    (plain, _), (decoupled, report) = (trained(world(how, memory, 1)) for how in ("none", "decoupled"))
    assert report["train/behavior_ratio_max"] > 1.001
    assert report["train/effective_sample_size"] < 1.0
    weights = [torch.cat([p.flatten() for p in each.policy.parameters()]) for each in (plain, decoupled)]
    assert (weights[0] - weights[1]).abs().max() > 1e-4
    assert_resumes_exactly(world("decoupled", memory, 1), stop_after_steps=[5, 11])


def test_a_cap_without_weights_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"max_behavior_weight: 2\.0 has no effect without"):
        RunFile.from_names("ppo", "CartPole-v1", "max_behavior_weight=2")
