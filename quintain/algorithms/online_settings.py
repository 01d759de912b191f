"""Settings of PPO with a reference policy. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from quintain.algorithms.settings import (
    AuxiliaryLossSettings,
    Fraction,
    NonNegative,
    Positive,
    PositiveSchedule,
    PPOSettings,
)
from quintain.core.registry import Registration
from quintain.settings.base import Count, constant


class OnlinePPOSettings(PPOSettings):
    """PPO with a KL penalty to a frozen reference policy, a value warm-up and normalised values, as in MineStudio."""

    clip_per_component: ClassVar[bool] = False  # type: ignore[misc]  # no setting of it
    use_symmetry: ClassVar[bool] = False  # type: ignore[misc]  # no setting of it

    learning_rate: PositiveSchedule = constant(2e-5)
    """Learning rate of AdamW; may decay to 0."""

    weight_decay: NonNegative = 0.04
    """Decoupled weight decay (AdamW) of all parameters outside parameter_groups."""

    adam_eps: Positive = 1e-8
    """Epsilon in Adam's denominator, which keeps tiny gradients from becoming large steps."""

    max_grad_norm: Positive | None = 5.0
    """Maximum norm of the gradient; null does not clip it."""

    num_epochs: Count = 1
    """Epochs per batch."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalized advantage estimation (GAE): 0 bootstraps, 1 uses sampled returns."""

    policy_coef: NonNegative = 1.0
    """Coefficient of the policy loss."""

    kl_coef: NonNegative = 0.2
    """Coefficient rho of the KL divergence to the reference: the policy as the run began. 0 keeps no reference."""

    kl_decay: Fraction = 0.9995
    """Factor on kl_coef after each iteration."""

    kl_direction: Literal["to_reference", "from_reference"] = "to_reference"
    """The divergence: KL(policy || reference), or from_reference KL(reference || policy)."""

    update_reference: bool = False
    """Make the current policy the reference whenever the sum of a batch's rewards exceeds all before."""

    value_warmup: Annotated[int, Field(ge=0)] = 0
    """Iterations at the start in which only the value function learns, with a KL coefficient of 1, and the version of
    the policy stays."""

    normalize_values: bool = True
    """Let the value head predict returns that are normalized by exponentially weighted averages."""

    zero_initial_values: bool = True
    """Set the value head to zero at the start, and the statistics of its normalizer."""

    min_log_prob: float | None = -11.0
    """Log-probability below which an action with a negative advantage is not pushed further; null does not bound it."""

    log_ratio_range: Positive = 50.0
    """Upper bound of the logarithm of the probability ratio."""


class BehaviorCloningSettings(AuxiliaryLossSettings):
    """Behaviour cloning of demonstrated rollouts, beside the algorithm's own objective."""

    path: str
    """Folder of rollouts, or one file, as the event collect_data writes them."""

    batch_size: Count = 256
    """Demonstrated steps beside each minibatch of a rank, or each part of one with micro_batch_size; for a recurrent
    policy in whole sequences."""


REGISTERED = (
    Registration(
        "auxiliary_loss",
        "behavior_cloning",
        BehaviorCloningSettings,
        "quintain.algorithms.behavior_cloning:BehaviorCloning",
    ),
    Registration(
        "algorithm",
        "online_ppo",
        OnlinePPOSettings,
        "quintain.algorithms.online_ppo:OnlinePPO",
        {"policy": {"type": "mine_policy"}},
    ),
)
