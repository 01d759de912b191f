"""Says whether a policy acts by compiled kernels: decided by settings and spaces alone, so that it is no luck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.policies.networks import Mlp

if TYPE_CHECKING:
    from quintain.policies.kernel_tables import KernelPolicy

MAX_WEIGHTS = 250_000
"""Weights of both networks up to which kernels are chosen by themselves; beyond, torch's products are as fast."""


def why_plain(policy: KernelPolicy) -> str:
    """Returns why a policy acts by torch's own operations; nothing if it acts by compiled kernels.

    Kernels that were asked for and cannot be are refused.
    """
    if policy.settings.compiled is False:
        return "policy.compiled is off"
    obstacle = _obstacle(policy)
    if obstacle and policy.settings.compiled:
        raise SettingsError(f"policy.compiled cannot be on: {obstacle}. Leave it out", code="E0251")
    num_weights = sum(parameter.numel() for parameter in policy.parameters())
    if not obstacle and policy.settings.compiled is None and num_weights > MAX_WEIGHTS:
        return f"{num_weights:,} weights are as fast without kernels; policy.compiled=true asks for them"
    return obstacle


def _obstacle(policy: KernelPolicy) -> str:
    if not policy.fits_kernels or not isinstance(policy.actor, Mlp):
        return f"kernels do not know what {type(policy).__name__} changes"
    if policy.num_values > 1:
        return "there is no kernel for algorithm.reward_streams averaged with several reward signals"
    if policy.state_size:
        return "there is no kernel for policy.memory"
    if any(len(encoder.images) for encoder in policy.encoders):
        return "there is no kernel for convolutions; policy.image_encoder=flatten would do without them"
    if policy.device.type != "cpu":
        return f"kernels run on the CPU, and the policy is on {policy.device}"
    return ""
