"""Agents are acted for in one pass over as many rows as there are agents, with random numbers of their own rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Slot
from quintain.data.spec import BehaviorSpec, box, multi_discrete
from quintain.envs.agents.boundary import Boundary
from quintain.envs.agents.steps import DecisionSteps
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rollouts.agent_collector import NOISE_STEPS, AgentCollector

CHOICES = BehaviorSpec(box(3), multi_discrete(4), mask_size=4)


@pytest.mark.parametrize(("num_agents", "num_rows"), [(1, 1), (3, 3), (4, 4), (9, 10)])
def test_few_agents_take_no_more_rows_than_they_are(
    num_agents: int, num_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(4,), compiled=False), CHOICES, Rng(0))
    collector = AgentCollector(policy, 5, Rng(7), lambda *played: None)
    noise: list[np.ndarray] = []
    act = policy.act

    def watched(slot: Slot, state: torch.Tensor | None = None, *, deterministic: bool = False) -> None:
        noise.append(slot.arrays[f.NOISE].copy())
        act(slot, state, deterministic=deterministic)

    monkeypatch.setattr(policy, "act", watched)
    size = 3
    boundary = Boundary("Some", CHOICES)
    one, zero = np.ones(num_agents, np.float32), np.zeros(num_agents, np.int32)
    steps = DecisionSteps(
        [np.ones((num_agents, size), np.float32)], one, np.arange(num_agents, dtype=np.int32), None, zero, one
    )
    with torch.inference_mode():
        for _ in range(2):
            collector.take_in(boundary.nobody, boundary.decisions(steps), None)
            _, choices = collector.act(0)
            assert len(choices) == num_agents
    # Numbers are drawn for four agents at least, so that those of one do not depend on whether there are two.
    drawn = np.zeros((NOISE_STEPS, max(4, num_rows), 1), np.float32)
    Rng(7).fill_uniform(drawn, "uniform", 0)
    assert np.array_equal(np.stack(noise), drawn[:2, :num_rows])
