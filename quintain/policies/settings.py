"""Declares the settings of the policies that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings


class PolicySettings(PartSettings):
    """Configures a policy of your own that needs no settings."""


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


REGISTERED = (
    Registration("policy", "actor_critic", ActorCriticSettings, "quintain.policies.actor_critic:ActorCritic"),
)
