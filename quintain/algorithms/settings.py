"""Declares the settings of the algorithms that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from quintain.registry import Registration
from quintain.settings.base import Count, PartSettings, Schedule, constant

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


def _require_positive_start(schedule: Schedule) -> Schedule:
    if schedule.start <= 0 or (schedule.end is not None and schedule.end < 0):
        raise PydanticCustomError("positive_schedule", "expected a start above 0 and an end not below 0")
    return schedule


def _require_no_negative(schedule: Schedule) -> Schedule:
    if schedule.start < 0 or (schedule.end is not None and schedule.end < 0):
        raise PydanticCustomError("non_negative_schedule", "expected no number below 0")
    return schedule


PositiveSchedule = Annotated[Schedule, AfterValidator(_require_positive_start)]
NonNegativeSchedule = Annotated[Schedule, AfterValidator(_require_no_negative)]


class AlgorithmSettings(PartSettings):
    """Configures the Adam optimizer that every gradient algorithm shares."""

    learning_rate: PositiveSchedule = constant(3e-4)
    """Step size of Adam."""

    max_grad_norm: Positive | None = 0.5
    """Bound on the norm of the whole gradient; none leaves it alone."""

    adam_eps: Positive = 1e-5
    """Term in Adam's denominator that keeps tiny gradients from becoming large steps."""


class PPOSettings(AlgorithmSettings):
    """Improves the policy by proximal policy optimisation with generalised advantages."""

    learning_rate: PositiveSchedule = constant(1e-3)
    """Step size of Adam; lower it, or let it fall to 0, for larger networks and batches."""

    clip_coef: PositiveSchedule = constant(0.2)
    """How far the probability ratio may leave 1 before its gradient is cut."""

    clip_value: Positive | None = None
    """How far a value may move from the collected one; none does not clip values."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Weight of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Weight of the value loss."""

    num_epochs: Count = 10
    """Passes over each batch."""

    batch_size: Count = 256
    """Steps in one minibatch."""

    target_kl: Positive | None = None
    """Stop the epochs of an update once the policy moved this far; none runs all of them."""

    normalize_advantage: bool = True
    """Scale the advantages of each batch to mean 0 and deviation 1."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Mix of bootstrapped (0) and sampled (1) returns in an advantage."""


REGISTERED = (Registration("algorithm", "ppo", PPOSettings, "quintain.algorithms.ppo:PPO"),)
