"""Defines `experiment`: everything that may change a number, and is therefore fingerprinted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings, Settings
from quintain.settings.choice import Choice

_REWARD_SIGNAL = Choice("reward_signal", named_by_key=True)
_BEHAVIOR_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Budget(Settings):
    """Says when a run is finished."""

    env_steps: Count = 100_000
    """Environment steps to learn from."""


class Behavior(Settings):
    """Puts together what acts, what it learns from and how it changes."""

    trainer: Annotated[PartSettings, Choice("trainer", default="rollout")] = Field(default={}, validate_default=True)
    """The stages that are repeated."""

    policy: Annotated[PartSettings, Choice("policy", default="actor_critic")] = Field(default={}, validate_default=True)
    """What acts and is trained."""

    algorithm: Annotated[PartSettings, Choice("algorithm")]
    """How the policy changes."""

    rollout: Annotated[PartSettings, Choice("rollout", default="block")] = Field(default={}, validate_default=True)
    """Where experience waits, how much of it and for how long."""

    reward_signals: dict[str, Annotated[PartSettings, _REWARD_SIGNAL]] = Field(
        default={"extrinsic": "extrinsic"}, validate_default=True
    )
    """What counts as good, by name; the name is the type unless another is given."""

    events: tuple[Annotated[PartSettings, Choice("event")], ...] = Field(default=("evaluate",), validate_default=True)
    """What else happens between stages."""

    @field_validator("reward_signals", mode="before")
    @classmethod
    def _name_is_type(cls, signals: object) -> object:
        if not isinstance(signals, Mapping):
            return signals
        return {name: _REWARD_SIGNAL.under(name).named(signal) for name, signal in signals.items()}


class Experiment(Settings):
    """Decides every number of a run."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Start of every random stream."""

    budget: Budget = Budget()
    """When the run is finished."""

    env: Annotated[PartSettings, Choice("env")]
    """What is acted in."""

    behaviors: dict[str, Behavior] = Field(default={"default": {}}, validate_default=True)
    """One block for each kind of actor."""

    @field_validator("behaviors")
    @classmethod
    def _are_well_named(cls, behaviors: dict[str, Behavior]) -> dict[str, Behavior]:
        for name in behaviors:
            if not _BEHAVIOR_NAME.fullmatch(name):
                raise PydanticCustomError(
                    "behavior_name",
                    'name "{name}" may only have letters, digits, "_", "." and "-"',
                    {"name": name},
                )
        if not behaviors:
            raise PydanticCustomError("behavior_count", "found none, expected at least one")
        return behaviors
