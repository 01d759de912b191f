"""Says whether PPO learns by compiled kernels, and makes them; decided by settings and spaces alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly

if TYPE_CHECKING:
    from quintain.algorithms.compiled_learning import CompiledLearning
    from quintain.algorithms.ppo import PPO


def why_plain(algorithm: PPO, *, is_changed: bool) -> str:
    """Returns why an algorithm learns by torch's own operations; nothing if it learns by compiled kernels."""
    settings, policy = algorithm.settings, algorithm.policy
    if is_changed:
        return f"kernels do not know what {type(algorithm).__name__} changes"
    if policy.why_plain:
        return policy.why_plain
    if isinstance(policy, ActorOnly):
        return "there is no kernel for a policy without a critic"
    if settings.use_symmetry:
        return "there is no kernel for algorithm.use_symmetry"
    if settings.micro_batch_size is not None:
        return "there is no kernel for algorithm.micro_batch_size, which kernels do not need"
    return ""


def make_kernels(algorithm: PPO) -> CompiledLearning:
    """Makes what takes the algorithm's steps; here, so that nobody else has to load a compiler."""
    from quintain.algorithms.compiled_learning import CompiledLearning

    assert isinstance(algorithm.policy, ActorCritic)
    return CompiledLearning(algorithm.policy, algorithm.settings, algorithm.optimizer, algorithm.sampler)
