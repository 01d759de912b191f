"""Small batches of random experience for tests of algorithms, with the policy's own actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quintain.algorithms.base import Algorithm
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.base import Policy, draw_noise
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings

CHOICES = BehaviorSpec(obs=box(3), action=discrete(4))
HYBRID = BehaviorSpec(
    obs=DictSpec((("x", box(3)), ("c", discrete(2)))), action=DictSpec((("go", discrete(3)), ("push", box(2))))
)


def signals(gamma: float = 0.99) -> dict[str, Extrinsic]:
    return {"extrinsic": Extrinsic(ExtrinsicSettings(gamma=gamma))}


def make_policy(spec: BehaviorSpec = CHOICES, memory: str = "", **settings: Any) -> ActorCritic:
    chosen = {"memory": MemorySettings(cell=memory, size=5)} if memory else {}
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), **chosen, **settings), spec, Rng(0))
    with torch.no_grad():
        policy.actor[-1].weight.mul_(100)
    return policy


def rollout_of(
    policy: Policy,
    *,
    num_lanes: int = 4,
    num_steps: int = 6,
    invalid: tuple[tuple[int, int], ...] = (),
    first: tuple[tuple[int, int], ...] = (),
) -> Rollout:
    """Makes random observations and rewards and lets the policy act on them; (lane, step) pairs are special."""
    generator = np.random.default_rng(1)
    rollout = Rollout(policy.spec, policy.declare_fields(), num_lanes=num_lanes, num_steps=num_steps)
    rollout.begin(1, version=0)
    draw_noise(rollout, policy.noise, Rng(2), first_step=0)
    for name in rollout.obs_names:
        field = rollout.storage[name]
        drawn = generator.standard_normal(field.shape)
        field.copy_(torch.from_numpy(drawn if field.dtype.is_floating_point else (drawn > 0).astype(np.int64)))
    rollout.storage[f.REWARD].copy_(torch.from_numpy(generator.standard_normal((num_steps + 1, num_lanes))))
    rollout.storage[f.FIRST].zero_()
    for lane, t in first:
        rollout[f.FIRST][lane, t] = True
    state = torch.from_numpy(generator.standard_normal((num_lanes, policy.state_size)).astype(np.float32))
    rollout.policy_state.copy_(state)
    with torch.no_grad():
        for slot in rollout.slots:
            policy.act(slot, state)
    for lane, t in invalid:
        rollout[f.VALID][lane, t] = False
    return rollout


def estimated(algorithm: Algorithm, **options: Any) -> Batch:
    batch = Batch(rollout_of(algorithm.policy, **options))
    algorithm.estimate(batch)
    return batch


def disturb(policy: Policy) -> None:
    """Moves the weights, so that ratios leave 1."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


def gradients(algorithm: Algorithm) -> torch.Tensor:
    return algorithm.optimizer.grad.clone()
