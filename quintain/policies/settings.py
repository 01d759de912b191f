"""Declares the settings of the policies that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings, Settings


class PolicySettings(PartSettings):
    """Configures a policy of your own that needs no settings."""


class MemorySettings(Settings):
    """Lets a policy remember what it saw earlier in the episode."""

    cell: Literal["lstm", "gru"] = "lstm"
    """Kind of recurrent layer."""

    size: Count = 64
    """Numbers that the layer passes on."""


class ActorCriticSettings(PolicySettings):
    """Acts and values with two multilayer perceptrons of the same shape."""

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

    clip_actions: bool = True
    """Clip continuous actions to the bounds of their space before they reach the environment."""

    squash_actions: bool = False
    """Squash continuous actions into their bounds by tanh instead of clipping them."""

    state_dependent_std: bool = False
    """Let the network choose the deviation of continuous actions in each state."""

    image_encoder: Literal["convolution", "flatten"] = "convolution"
    """How observations with height, width and channels are read."""

    image_features: Count = 256
    """Features that an image is reduced to."""

    memory: MemorySettings | None = None
    """Recurrent memory; null acts on the present observation alone."""

    actor_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the actor sees; null means all."""

    critic_obs: tuple[str, ...] | None = None
    """Entries of a Dict observation that the critic sees, such as what only a simulator knows; null means all."""


class ActorOnlySettings(ActorCriticSettings):
    """Acts with one network and has no critic."""


REGISTERED = (
    Registration("policy", "actor_only", ActorOnlySettings, "quintain.policies.actor_only:ActorOnly"),
    Registration("policy", "actor_critic", ActorCriticSettings, "quintain.policies.actor_critic:ActorCritic"),
)
