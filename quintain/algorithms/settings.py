"""Declares the settings of the algorithms that ship. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
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

    needs_groups: ClassVar[bool] = False
    needs_replay: ClassVar[bool] = False
    needs_mates: ClassVar[bool] = False

    learning_rate: PositiveSchedule = constant(3e-4)
    """Step size of Adam."""

    max_grad_norm: Positive | None = 0.5
    """Bound on the norm of the whole gradient; null leaves it alone."""

    adam_eps: Positive = 1e-5
    """Term in Adam's denominator that keeps tiny gradients from becoming large steps."""


class PPOSettings(AlgorithmSettings):
    """Improves the policy by proximal policy optimisation with generalised advantages."""

    learning_rate: PositiveSchedule = constant(1e-3)
    """Step size of Adam; lower it, or let it fall to 0, for larger networks and batches."""

    clip_coef: PositiveSchedule = constant(0.2)
    """How far the probability ratio may leave 1 before its gradient is cut."""

    clip_per_component: bool = False
    """Clips the ratio of each number and choice of an action by itself, and averages; else that of the whole action."""

    clip_value: PositiveSchedule | None = None
    """How far a value may move from the collected one; null does not clip values."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Weight of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Weight of the value loss."""

    num_epochs: Count = 10
    """Passes over each batch."""

    batch_size: Count = 256
    """Steps in one minibatch."""

    target_kl: Positive | None = None
    """Stop the epochs of an update once the policy moved this far; null runs all of them."""

    normalize_advantage: bool = True
    """Scale the advantages of each batch to mean 0 and deviation 1."""

    adaptive_kl: Positive | None = None
    """Movement per update that the learning rate is adapted to, starting from learning_rate; null leaves it alone."""

    micro_batch_size: Count | None = None
    """Rows that go through the network at once, where a minibatch does not fit; gradients add up. Null means all."""

    use_symmetry: bool = False
    """Learn from the mirrored steps too that the environment's `mirror(obs, action)` returns."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Mix of bootstrapped (0) and sampled (1) returns in an advantage."""

    reward_streams: Literal["summed", "averaged"] = "summed"
    """Add reward signals up for one critic, or learn a value of each by its own gamma and average the advantages."""


class POCASettings(PPOSettings):
    """Improves the policy of agents in groups by PPO with a critic that sees the whole group."""

    needs_mates: ClassVar[bool] = True

    clip_value: PositiveSchedule | None = constant(0.2)
    """How far a value or a baseline may move from the first of an update; null does not clip them."""

    baseline_coef: NonNegative = 0.5
    """Weight of the baseline's loss, as a part of the value loss."""

    embedding_size: Annotated[Count, Field(multiple_of=4)] = 64
    """Numbers by which the critic knows each member of a group; 4 heads share them."""


class A2CSettings(AlgorithmSettings):
    """Improves the policy by one gradient step on each batch, with generalised advantages."""

    learning_rate: PositiveSchedule = constant(7e-4)
    """Step size of Adam."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Weight of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Weight of the value loss."""

    normalize_advantage: bool = False
    """Scale the advantages of each batch to mean 0 and deviation 1."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Mix of bootstrapped (0) and sampled (1) returns in an advantage."""


class GRPOSettings(AlgorithmSettings):
    """Improves the policy by comparing episodes that began alike, without a critic."""

    needs_groups: ClassVar[bool] = True

    clip_coef: PositiveSchedule = constant(0.2)
    """How far the probability ratio may leave 1 before its gradient is cut."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Weight of the entropy bonus."""

    kl_coef: NonNegative = 0.0
    """Weight of staying near the policy that the run began with; 0 keeps no such policy."""

    num_epochs: Count = 10
    """Passes over each batch."""

    batch_size: Count = 256
    """Steps in one minibatch."""


class SACSettings(AlgorithmSettings):
    """Improves the policy by soft actor-critic: two critics, replayed experience, and a price on being predictable."""

    needs_replay: ClassVar[bool] = True

    max_grad_norm: Positive | None = None
    """Bound on the norm of the whole gradient; null leaves it alone."""

    adam_eps: Positive = 1e-8
    """Term in Adam's denominator that keeps tiny gradients from becoming large steps."""

    batch_size: Count = 256
    """Transitions in one minibatch."""

    updates_per_step: Positive = 1.0
    """Gradient steps for each environment step (the updates-to-data ratio); may be below 1."""

    learning_starts: Count = 100
    """Environment steps before the first gradient step; until then actions are uniformly random."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Part of the way that the target critics move towards the critics after each gradient step."""

    entropy_coef: NonNegative | None = None
    """Weight of the entropy bonus (the temperature); null adapts it until the entropy is the target."""

    initial_entropy_coef: Positive = 1.0
    """The weight that adapting starts from."""

    target_entropy: float | None = None
    """Entropy that continuous actions are kept at; null is minus their number."""

    target_entropy_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Entropy that choices are kept at, as a part of the largest possible."""


_WITHOUT_CRITIC = {"policy": {"type": "actor_only"}}
_REPLAYED = {"policy": {"type": "soft_actor"}, "rollout": {"type": "replay"}}

REGISTERED = (
    Registration("algorithm", "ppo", PPOSettings, "quintain.algorithms.ppo:PPO"),
    Registration("algorithm", "poca", POCASettings, "quintain.algorithms.poca:POCA", _WITHOUT_CRITIC),
    Registration("algorithm", "a2c", A2CSettings, "quintain.algorithms.a2c:A2C", {"rollout": {"num_steps": 16}}),
    Registration("algorithm", "grpo", GRPOSettings, "quintain.algorithms.grpo:GRPO", _WITHOUT_CRITIC),
    Registration("algorithm", "sac", SACSettings, "quintain.algorithms.sequence_sac:sac_for", _REPLAYED),
)
