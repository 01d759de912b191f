"""Defines `experiment`: everything that may change a number, and is therefore fingerprinted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings, Settings
from quintain.settings.choice import Choice

_REWARD_SIGNAL = Choice("reward_signal", named_by_key=True)
# Files and folders are called by it, so "..", hidden names and names too long for a file are none.
_BEHAVIOR_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


DEFAULT_ENV_STEPS = 100_000


class BudgetSettings(Settings):
    """Says when a run is finished: after so many environment steps, so many updates, or the first of both."""

    env_steps: Count | None = None
    """Environment steps to learn from; 100,000 where no budget is given."""

    updates: Count | None = None
    """Cycles of the trainer, each of which ends with an update."""

    @model_validator(mode="before")
    @classmethod
    def _has_an_end(cls, given: object) -> object:
        if isinstance(given, Mapping) and all(given.get(name) is None for name in ("env_steps", "updates")):
            return {**given, "env_steps": DEFAULT_ENV_STEPS}
        return given


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

    budget: BudgetSettings = BudgetSettings()
    """When the run is finished."""

    loop: Annotated[PartSettings | None, Choice("loop", is_optional=True)] = None
    """A loop of your own that has no environment and no behaviours; in place of both."""

    env: Annotated[PartSettings, Choice("env")]
    """What is acted in."""

    behaviors: dict[str, Behavior] = Field(default={"default": {}}, validate_default=True)
    """One block for each kind of actor."""

    @model_validator(mode="before")
    @classmethod
    def _loop_takes_their_place(cls, given: object) -> object:
        if not isinstance(given, Mapping) or given.get("loop") is None:
            return given
        for name, nothing in (("env", {"type": "none"}), ("behaviors", {})):
            if given.get(name, nothing) != nothing:
                raise PydanticCustomError(
                    "loop", "experiment.loop has no {name} beside it; leave out one of them", {"name": name}
                )
        return {**given, "env": {"type": "none"}, "behaviors": {}}

    @field_validator("behaviors")
    @classmethod
    def _are_well_named(cls, behaviors: dict[str, Behavior], others: ValidationInfo) -> dict[str, Behavior]:
        # Not where the loop itself is wrong: that is said already.
        if not behaviors and others.data.get("loop", True) is None:
            raise PydanticCustomError("behavior_count", "found none, expected at least one")
        for name in behaviors:
            if not _BEHAVIOR_NAME.fullmatch(name):
                raise PydanticCustomError(
                    "behavior_name",
                    'name "{name}" may only have up to 100 letters, digits, "_", "." and "-", and no "." at its '
                    "beginning",
                    {"name": name[:100]},
                )
        return behaviors
