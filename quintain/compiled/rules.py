"""Decides between kernels and torch, with the fallback reason: by settings and spaces alone, never by measured time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from quintain.compiled.runtime.kernel import why_unavailable
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.actor_only import ActorOnly
from quintain.policies.encoders import ImageEncoder
from quintain.policies.heads import GaussianHead
from quintain.policies.networks import Mlp
from quintain.policies.settings import QNetworkSettings, SoftActorSettings

if TYPE_CHECKING:
    from quintain.algorithms.dqn import DQN
    from quintain.algorithms.ppo import PPO
    from quintain.algorithms.sac import SAC
    from quintain.algorithms.td3 import TD3
    from quintain.compiled.policy_tables import KernelPolicy
    from quintain.policies.team import TeamPolicy

NO_LEARNING_KERNELS = "this algorithm has no kernels"

MAX_WEIGHTS = 250_000
"""Number of weights, without images, up to which kernels are the default; beyond it torch is as fast."""


def why_acting_is_plain(policy: KernelPolicy) -> str:
    """Returns why a policy acts by torch's operations; empty if kernels can act for it.

    Kernels that the settings require and that are not possible are refused.
    """
    if policy.settings.compiled is False:
        return "policy.compiled is off"
    obstacle = _obstacle(policy)
    if obstacle and policy.settings.compiled:
        raise SettingsError(f"policy.compiled cannot be on: {obstacle}. Leave it out", code="E0251")
    images = [image for encoder in dict.fromkeys(policy.encoders) for image in encoder.named_images.values()]
    num_seeing = sum(parameter.numel() for image in images for parameter in image.parameters())
    num_weights = sum(parameter.numel() for parameter in policy.parameters()) - num_seeing
    if not obstacle and policy.settings.compiled is None and num_weights > MAX_WEIGHTS:
        return f"{num_weights:,} weights are as fast without kernels; policy.compiled=true asks for them"
    return obstacle


def why_team_is_plain(policy: TeamPolicy) -> str:
    """Returns why a team acts by torch's operations; empty if kernels can act for it."""
    if policy.settings.compiled is False:
        return "policy.compiled is off"
    obstacle = ""
    if not policy.fits_kernels:
        obstacle = f"kernels do not know what {type(policy).__name__} changes"
    elif policy.hand_written:
        obstacle = f"there is no kernel for the hand-written agent {next(iter(policy.hand_written))}"
    elif policy.settings.keep_logits:
        obstacle = "kernels keep no logits"
    elif policy.noise.num_normal:
        obstacle = "there is no kernel for continuous actions of a team"
    elif policy.device.type != "cpu":
        obstacle = f"kernels run on the CPU, and the policy is on {policy.device}"
    obstacle = obstacle or why_unavailable()
    if obstacle and policy.settings.compiled:
        raise SettingsError(f"policy.compiled cannot be on: {obstacle}. Leave it out", code="E0251")
    num_weights = max([sum(p.numel() for p in agent.parameters()) for agent in policy.agents.values()], default=0)
    if not obstacle and policy.settings.compiled is None and num_weights > MAX_WEIGHTS:
        return f"{num_weights:,} weights are as fast without kernels; policy.compiled=true asks for them"
    return obstacle


def _obstacle(policy: KernelPolicy) -> str:
    if isinstance(policy.settings, QNetworkSettings) and policy.settings.dueling:
        return "there is no kernel for policy.dueling"
    if not policy.fits_kernels or not isinstance(policy.actor, Mlp):
        return f"kernels do not know what {type(policy).__name__} changes"
    if policy.settings.network is not None:
        return "kernels do not know policy.network"
    if policy.settings.use_sde:
        return "there is no kernel for policy.use_sde"
    if policy.num_values > 1:
        return "there is no kernel for algorithm.reward_streams averaged with several reward signals"
    if policy.state_size and isinstance(policy.settings, SoftActorSettings):
        return "there is no kernel for policy.memory of a soft_actor"
    if any(memory.kind == "transformer" for memory in policy.memories):
        return "there is no kernel for policy.memory.cell transformer"
    if policy.device.type != "cpu":
        return f"kernels run on the CPU, and the policy is on {policy.device}"
    return why_unavailable()


def why_ppo_is_plain(algorithm: PPO, *, is_changed: bool, acting_reason: str) -> str:
    """Returns why PPO learns by torch's operations; empty if kernels can take its steps."""
    settings, policy = algorithm.settings, algorithm.policy
    if is_changed:
        return f"kernels do not know what {type(algorithm).__name__} changes"
    if acting_reason:
        return acting_reason
    if isinstance(policy, ActorOnly):
        return "there is no kernel for a policy without a critic"
    if isinstance(policy, ActorCritic) and any(encoder.image_names for encoder in policy.encoders):
        return "there is no kernel for convolutions; policy.image_encoder=flatten would do without them"
    if algorithm.optimizer.groups:
        return "there is no kernel for algorithm.parameter_groups"
    if algorithm.auxiliary_losses:
        return "there is no kernel for auxiliary_losses"
    if settings.use_symmetry:
        return "there is no kernel for algorithm.use_symmetry"
    if settings.micro_batch_size is not None:
        return "there is no kernel for algorithm.micro_batch_size, which kernels do not need"
    return ""


def why_replay_is_plain(algorithm: SAC | TD3 | DQN, *, is_changed: bool) -> str:
    """Returns why gradients of an algorithm that learns from replay are left to autograd; nothing if they are not."""
    policy = algorithm.policy
    if policy.state_size:
        return "gradients are not written out for policy.memory"
    if isinstance(policy.settings, QNetworkSettings) and policy.settings.dueling:
        return "gradients are not written out for policy.dueling"
    if is_changed or not policy.fits_kernels:
        return f"gradients are not written out for what {type(algorithm if is_changed else policy).__name__} changes"
    if policy.settings.network is not None:
        return "gradients are not written out for policy.network"
    if policy.settings.use_sde:
        return "gradients are not written out for policy.use_sde"
    if algorithm.auxiliary_losses:
        return "gradients are not written out for auxiliary_losses"
    if policy.settings.compiled is False:
        return "policy.compiled is off"
    if any(optimizer.groups for optimizer in algorithm.optimizers.values()):
        return "gradients are not written out for algorithm.parameter_groups"
    if isinstance(policy.settings, SoftActorSettings):
        parts = policy.head.parts if policy.head is not None else []
        if len(parts) > 1 or not isinstance(parts[0], GaussianHead):
            return "gradients are not written out for actions other than one continuous array"
    networks = [each for each in (policy, *vars(algorithm).values()) if isinstance(each, nn.Module)]
    if any(isinstance(module, ImageEncoder) for network in networks for module in network.modules()):
        return "gradients are not written out for convolutions; policy.image_encoder=flatten would do without them"
    if policy.device.type != "cpu":
        return f"gradients are written out for the CPU, and the policy is on {policy.device}"
    return why_unavailable()
