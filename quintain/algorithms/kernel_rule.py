"""Says which way an algorithm learns: by kernels or by torch, by autograd or by gradients that are written out.

Decided by settings and spaces alone, so that it is no luck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.heads import GaussianHead

if TYPE_CHECKING:
    from quintain.algorithms.compiled_learning import CompiledLearning
    from quintain.algorithms.ppo import PPO
    from quintain.algorithms.sac import SAC
    from quintain.algorithms.soft_gradients import SoftGradients


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


def why_autograd(algorithm: SAC, *, is_changed: bool) -> str:
    """Returns why SAC leaves its gradients to autograd; nothing where they are written out."""
    policy = algorithm.policy
    if is_changed or not policy.fits_kernels:
        return f"gradients are not written out for what {type(algorithm if is_changed else policy).__name__} changes"
    if policy.settings.compiled is False:
        return "policy.compiled is off"
    if len(policy.head.parts) > 1 or not isinstance(policy.head.parts[0], GaussianHead):
        return "gradients are not written out for actions other than one array of numbers"
    if len(policy.encoder.images) or len(algorithm.critics.encoder.images):
        return "gradients are not written out for convolutions; policy.image_encoder=flatten would do without them"
    if policy.device.type != "cpu":
        return f"gradients are written out for the CPU, and the policy is on {policy.device}"
    return ""


def make_kernels(algorithm: PPO) -> CompiledLearning:
    """Makes what takes the algorithm's steps; here, so that nobody else has to load a compiler."""
    from quintain.algorithms.compiled_learning import CompiledLearning

    assert isinstance(algorithm.policy, ActorCritic)
    return CompiledLearning(algorithm.policy, algorithm.settings, algorithm.optimizer, algorithm.sampler)


def make_gradients(algorithm: SAC, num_rows: int) -> SoftGradients:
    """Makes what writes the gradients of minibatches of that size; here, so that nobody else has to load a compiler."""
    from quintain.algorithms.soft_gradients import SoftGradients

    parts = (algorithm.policy, algorithm.critics, algorithm.targets, algorithm.temperature)
    return SoftGradients(*parts, num_rows, algorithm.second_thread)
