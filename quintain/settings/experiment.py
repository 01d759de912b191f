"""Defines `experiment`: all settings that may change results, and are therefore fingerprinted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from quintain.settings.base import Count, PartSettings, Settings
from quintain.settings.choice import Choice

_REWARD_SIGNAL = Choice("reward_signal", named_by_key=True)
_AUXILIARY_LOSS = Choice("auxiliary_loss", named_by_key=True)
# Files and folders are called by it, so "..", hidden names and names too long for a file are none.
_BEHAVIOR_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}")


DEFAULT_ENV_STEPS = 100_000


class BudgetSettings(Settings):
    """When a run is finished: after so many environment steps, so many updates, or the first of both."""

    env_steps: Count | None = None
    """Number of environment steps to train on; 100,000 if no budget is given."""

    updates: Count | None = None
    """Number of updates, one per cycle of the trainer."""

    @model_validator(mode="before")
    @classmethod
    def _has_an_end(cls, given: object) -> object:
        if isinstance(given, Mapping) and all(given.get(name) is None for name in ("env_steps", "updates")):
            return {**given, "env_steps": DEFAULT_ENV_STEPS}
        return given


class Behavior(Settings):
    """The policy, algorithm, rollout store, reward signals and events of one behaviour."""

    trainer: Annotated[PartSettings, Choice("trainer", default="rollout")] = Field(default={}, validate_default=True)
    """The trainer: the stages of a training cycle."""

    policy: Annotated[PartSettings, Choice("policy", default="actor_critic")] = Field(default={}, validate_default=True)
    """The policy network."""

    algorithm: Annotated[PartSettings, Choice("algorithm")]
    """The learning algorithm."""

    rollout: Annotated[PartSettings, Choice("rollout", default="block")] = Field(default={}, validate_default=True)
    """The store of experience: rollouts or a replay buffer, their size and staleness."""

    reward_signals: dict[str, Annotated[PartSettings, _REWARD_SIGNAL]] = Field(
        default={"extrinsic": "extrinsic"}, validate_default=True
    )
    """Reward signals by name; the name is the type unless one is given."""

    auxiliary_losses: dict[str, Annotated[PartSettings, _AUXILIARY_LOSS]] = Field(default={})
    """Losses beside the algorithm's, by name; the name is the type unless another is given."""

    events: tuple[Annotated[PartSettings, Choice("event")], ...] = Field(default=("evaluate",), validate_default=True)
    """Callbacks between stages, such as evaluations."""

    @field_validator("reward_signals", "auxiliary_losses", mode="before")
    @classmethod
    def _name_is_type(cls, parts: object, field: ValidationInfo) -> object:
        if not isinstance(parts, Mapping):
            return parts
        choice = _REWARD_SIGNAL if field.field_name == "reward_signals" else _AUXILIARY_LOSS
        return {name: choice.under(name).named(part) for name, part in parts.items()}


class Experiment(Settings):
    """All settings that determine a run's results."""

    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of all random streams."""

    budget: BudgetSettings = BudgetSettings()
    """When the run is finished."""

    initialize_from: Annotated[str, Field(pattern=r"[^#]+(#[0-9a-f]{8,64})?")] | None = None
    """Run, or RUN@CHECKPOINT, whose policies the run starts with (a fork); `#` and a digest says which exactly."""

    loop: Annotated[PartSettings | None, Choice("loop", is_optional=True)] = None
    """A training loop of your own without environment and behaviours; replaces both."""

    env: Annotated[PartSettings, Choice("env")]
    """The training environment."""

    behaviors: dict[str, Behavior] = Field(default={"default": {}}, validate_default=True)
    """One block per behaviour."""

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
