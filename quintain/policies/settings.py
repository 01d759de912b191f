"""Declares the settings of the policies that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Settings


class PolicySettings(PartSettings):
    """Configures a policy of your own that needs no settings."""


class MemorySettings(Settings):
    """Lets a policy remember what it saw earlier in the episode."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Kind of recurrent layer."""

    size: Count = 64
    """Numbers that the layer passes on."""


class NetworkSettings(PolicySettings):
    """Configures what all policies of multilayer perceptrons share."""

    hidden_sizes: tuple[Count, ...] = (64, 64)
    """Width of each hidden layer."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "tanh"
    """Non-linearity between layers."""

    normalize_obs: bool = False
    """Scale observations by their running mean and deviation."""

    obs_clip: Annotated[float, Field(gt=0)] = 10.0
    """Bound on normalised observations, in deviations."""

    initial_log_std: float = 0.0
    """Logarithm of the first deviation of continuous actions."""

    image_encoder: Literal["convolution", "simple", "flatten"] = "convolution"
    """How observations with height, width and channels are read."""

    image_features: Count = 256
    """Features that an image is reduced to."""

    actor_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the actor sees; null means all."""

    critic_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the critic sees, such as what only a simulator knows; null means all."""


class ActorCriticSettings(NetworkSettings):
    """Acts and values with two multilayer perceptrons of the same shape."""

    clip_actions: bool = True
    """Clip continuous actions to the bounds of their space before they reach the environment."""

    squash_actions: bool = False
    """Squash continuous actions into their bounds by tanh instead of clipping them."""

    state_dependent_std: bool = False
    """Let the network choose the deviation of continuous actions in each state."""

    memory: MemorySettings | None = None
    """Recurrent memory; null acts on the present observation alone."""

    compiled: bool | None = None
    """Act and learn by compiled kernels, which round differently; null does where there are and they are faster."""


class ActorOnlySettings(ActorCriticSettings):
    """Acts with one network and has no critic."""


class SoftActorSettings(NetworkSettings):
    """Acts with one network that squashes numbers into their bounds; for critics that value actions."""

    clip_actions: ClassVar[bool] = False
    squash_actions: ClassVar[bool] = True
    state_dependent_std: ClassVar[bool] = True

    hidden_sizes: tuple[Count, ...] = (256, 256)
    """Width of each hidden layer, of the actor and of each critic."""

    activation: Literal["tanh", "relu", "elu", "silu"] = "relu"
    """Non-linearity between layers."""

    memory: MemorySettings | None = None
    """Recurrent memory, for agents that come and go; null acts on the present observation alone."""

    compiled: bool | None = None
    """Act by compiled kernels and learn by gradients that are written out, which round differently; null does where
    there are and they are faster."""


REGISTERED = (
    Registration("policy", "soft_actor", SoftActorSettings, "quintain.policies.soft_actor:SoftActor"),
    Registration("policy", "actor_only", ActorOnlySettings, "quintain.policies.actor_only:ActorOnly"),
    Registration("policy", "actor_critic", ActorCriticSettings, "quintain.policies.actor_critic:ActorCritic"),
)
