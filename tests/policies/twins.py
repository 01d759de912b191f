"""Pairs of policies with the same weights, one compiled and one plain, and rollouts that both can act in alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from quintain.compiled.plug import accelerate
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.data.spec import BehaviorSpec, DictSpec, TupleSpec, box, discrete, leaves, multi_discrete
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings

HYBRID = DictSpec((("go", discrete(3)), ("push", box(2, low=-1.0, high=2.0)), ("turn", multi_discrete(2, 4))))
TWO_OF_A_KIND = TupleSpec((box(2, low=-1.0, high=1.0), discrete(5), box(1, low=0.0, high=4.0), discrete(2)))
MIXED = DictSpec((("a", box(3)), ("b", discrete(4)), ("c", box(2, 2)), ("d", multi_discrete(2, 3))))

CASES: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "choice": (BehaviorSpec(box(4), discrete(3)), {}),
    "masked choice": (BehaviorSpec(box(4), discrete(5), mask_size=5), {}),
    "choices": (BehaviorSpec(box(4), multi_discrete(2, 3, 4)), {}),
    "masked choices": (BehaviorSpec(box(4), multi_discrete(2, 3), mask_size=5), {}),
    "numbers": (BehaviorSpec(box(5), box(3)), {"initial_log_std": -0.4}),
    "one number": (BehaviorSpec(box(5), box(low=-1.0, high=1.0)), {}),
    "squashed": (BehaviorSpec(box(5), box(2, low=-2.0, high=3.0)), {"squash_actions": True, "initial_log_std": 0.3}),
    "state std": (BehaviorSpec(box(5), box(3)), {"state_dependent_std": True, "initial_log_std": -0.2}),
    "squashed state std": (
        BehaviorSpec(box(5), box(2, low=-1.0, high=1.0)),
        {"squash_actions": True, "state_dependent_std": True},
    ),
    "hybrid": (BehaviorSpec(box(4), HYBRID), {}),
    "masked hybrid": (BehaviorSpec(box(4), HYBRID, mask_size=9), {"state_dependent_std": True}),
    "two of a kind": (BehaviorSpec(box(4), TWO_OF_A_KIND), {"squash_actions": True}),
    "relu": (BehaviorSpec(box(4), discrete(3)), {"activation": "relu"}),
    "elu": (BehaviorSpec(box(4), discrete(3)), {"activation": "elu", "hidden_sizes": (7,)}),
    "silu": (BehaviorSpec(box(4), discrete(3)), {"activation": "silu", "hidden_sizes": (9, 6, 5)}),
    "no hidden layer": (BehaviorSpec(box(4), discrete(3)), {"hidden_sizes": ()}),
    "scaled": (BehaviorSpec(box(4), discrete(3)), {"normalize_obs": True, "obs_clip": 1.5}),
    "square": (BehaviorSpec(box(2, 3), discrete(3)), {"normalize_obs": True}),
    "mixed obs": (BehaviorSpec(MIXED, discrete(3)), {"normalize_obs": True}),
    "groups": (
        BehaviorSpec(MIXED, HYBRID),
        {"actor_obs": ("a",), "critic_obs": ("a", "b", "c"), "normalize_obs": True},
    ),
    "pixels": (BehaviorSpec(box(4, 4, 1, low=0, high=255, dtype="uint8"), discrete(2)), {"image_encoder": "flatten"}),
}

IMAGE, TALL_IMAGE = box(20, 20, 3, low=0, high=255, dtype="uint8"), box(2, 22, 30, low=0.0, high=1.0)
IMAGE_CASES: dict[str, tuple[BehaviorSpec, dict[str, Any]]] = {
    "image": (BehaviorSpec(IMAGE, discrete(2)), {"image_features": 10}),
    "channels first": (BehaviorSpec(TALL_IMAGE, HYBRID), {"image_encoder": "simple", "image_features": 9}),
    "stack of frames": (BehaviorSpec(box(2, 22, 20, 3, low=0, high=255, dtype="uint8"), box(2)), {"image_features": 8}),
    "three pixels": (BehaviorSpec(box(9, 12, 1, low=0.0, high=1.0), discrete(3)), {"image_features": 8}),
    "large image": (BehaviorSpec(box(40, 36, 3, low=0, high=255, dtype="uint8"), discrete(3)), {"image_features": 8}),
    "images and numbers": (
        BehaviorSpec(DictSpec((("a", box(3)), ("b", IMAGE), ("c", discrete(4)), ("d", TALL_IMAGE))), box(2)),
        {"image_features": 6, "normalize_obs": True},
    ),
    "seen by the critic": (
        BehaviorSpec(DictSpec((("a", box(3)), ("b", IMAGE))), discrete(3)),
        {"image_features": 6, "actor_obs": ("a",), "critic_obs": ("a", "b")},
    ),
}
"""What kernels act on and do not learn from."""


def twins(case: str, memory: MemorySettings | None = None) -> tuple[ActorCritic, ActorCritic]:
    """Returns a compiled policy and a plain one with equal weights, away from where a fresh policy begins."""
    spec, settings = {**CASES, **IMAGE_CASES}[case]
    settings = {**settings, "memory": memory}
    compiled, plain = (
        ActorCritic(
            ActorCriticSettings(**{"hidden_sizes": (16, 12), **settings, "compiled": is_compiled}), spec, Rng(5)
        )
        for is_compiled in (True, False)
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # A fresh actor is nearly uniform and its biases are zero: mistakes would not show.
        plain.actor[-1].weight.mul_(60)
        for parameter in plain.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    seen = rollout_for(plain, 40)
    plain.observe({name: seen.arrays[name].reshape(-1, *seen.arrays[name].shape[2:]) for name in seen.obs_names})
    compiled.load_state_dict(plain.state_dict())
    assert not accelerate(compiled).acting.fallback_reason
    assert accelerate(plain).acting.fallback_reason
    return compiled, plain


def rollout_for(policy: ActorCritic, num_lanes: int, num_steps: int = 2) -> Rollout:
    """Makes a rollout of random observations, masks that leave something, and noise."""
    rollout = Rollout(
        policy.spec,
        num_lanes=num_lanes,
        num_steps=num_steps,
        fields=policy.declare_fields(),
    )
    rollout.begin(1, version=0)
    draw = np.random.default_rng(num_lanes)
    for name, leaf in leaves(policy.spec.obs, f.OBS).items():
        array = rollout.arrays[name]
        # Pixels stay small: where tanh is flat, its slope is all rounding.
        high = {"uint8": 4, "int64": min(getattr(leaf, "nvec", (getattr(leaf, "n", 1),)))}.get(leaf.dtype)
        array[...] = draw.normal(size=array.shape) * 2.0 + 0.5 if high is None else draw.integers(0, high, array.shape)
    noise, num_uniform = rollout.arrays[f.NOISE], policy.noise.num_uniform
    noise[..., :num_uniform] = draw.random(noise[..., :num_uniform].shape)
    noise[..., num_uniform:] = draw.normal(size=noise[..., num_uniform:].shape)
    if policy.state_size:
        rollout.arrays[f.FIRST][...] = draw.random(rollout.arrays[f.FIRST].shape) < 0.15
        rollout.policy_state.copy_(torch.from_numpy(draw.normal(size=rollout.policy_state.shape) * 0.5))
    if policy.spec.mask_size:
        allowed = rollout.arrays[f.ACTION_MASK]
        allowed[...] = draw.random(allowed.shape) < 0.5
        allowed[..., _first_options(policy)] = True
    return rollout


def _first_options(policy: ActorCritic) -> list[int]:
    from quintain.data.spec import discrete_sizes

    return [0, *np.cumsum(discrete_sizes(policy.spec.action))[:-1].tolist()]
