"""Settings of the built-in algorithms. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings, Schedule, Settings, constant

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(gt=0, le=1)]


def _require_positive_start(schedule: Schedule) -> Schedule:
    if schedule.start <= 0 or min(schedule.targets) < 0:
        raise PydanticCustomError("positive_schedule", "expected a start above 0 and an end not below 0")
    return schedule


def _require_no_negative(schedule: Schedule) -> Schedule:
    if min(schedule.targets) < 0:
        raise PydanticCustomError("non_negative_schedule", "expected no number below 0")
    return schedule


PositiveSchedule = Annotated[Schedule, AfterValidator(_require_positive_start)]
NonNegativeSchedule = Annotated[Schedule, AfterValidator(_require_no_negative)]


class ParameterGroup(Settings):
    """Trains some parameters differently: slower, with weight decay, or not at all."""

    parameters: str | tuple[str, ...]
    """Names of parameters, or patterns such as actor.*; a parameter belongs to the first group that matches it."""

    learning_rate_factor: NonNegative = 1.0
    """Factor on the learning rate."""

    weight_decay: NonNegative = 0.0
    """Decoupled weight decay (AdamW): each step shrinks weights by this part of the learning rate."""

    frozen: bool = False
    """Freezes the parameters: weights and moments keep every bit."""


class AlgorithmSettings(PartSettings):
    """Settings of the Adam optimizer that all gradient algorithms share."""

    starts_fresh: ClassVar[bool] = False
    needs_groups: ClassVar[bool] = False
    needs_replay: ClassVar[bool] = False
    needs_teammates: ClassVar[bool] = False

    learning_rate: PositiveSchedule = constant(3e-4)
    """Learning rate of Adam; may decay to 0."""

    max_grad_norm: Positive | None = 0.5
    """Maximum norm of the gradient; null does not clip it."""

    adam_eps: Positive = 1e-5
    """Epsilon in Adam's denominator, which keeps tiny gradients from becoming large steps."""

    parameter_groups: dict[str, ParameterGroup] = Field(default={})
    """Groups of parameters, by name, that are trained slower, with weight decay, or not at all."""


class AuxiliaryLossSettings(PartSettings):
    """Settings that every auxiliary loss has."""

    coef: NonNegativeSchedule = constant(1.0)
    """Weight of the loss beside the algorithm's; may be a schedule."""


class PPOSettings(AlgorithmSettings):
    """Proximal policy optimisation (PPO) with generalized advantage estimation (GAE)."""

    steps_per_update: ClassVar[int] = 2048
    """Environment steps of all lanes in one update, from which the default of num_steps follows."""
    min_lane_steps: ClassVar[int] = 128
    """The least default of num_steps, with however many lanes."""

    clip_coef: PositiveSchedule = constant(0.2)
    """Clip range of the probability ratio around 1."""

    clip_per_component: bool = False
    """Clip the ratio of each continuous and discrete component independently, and average; else that of the whole
    action."""

    clip_value: PositiveSchedule | None = None
    """Clip range of values around the collected ones; null does not clip values."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Coefficient of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Coefficient of the value loss."""

    num_epochs: Count = 10
    """Epochs per batch."""

    batch_size: Count = 64
    """Minibatch size in steps."""

    target_kl: Positive | None = None
    """KL divergence at which the epochs of an update stop early; null runs all of them."""

    normalize_advantage: bool = True
    """Normalize the advantages of each batch to mean 0 and deviation 1."""

    adaptive_kl: Positive | None = None
    """KL divergence per update to which the learning rate is adapted, starting from learning_rate; null does not adapt
    it."""

    micro_batch_size: Count | None = None
    """Rows per forward pass, for minibatches that do not fit in memory; gradients are accumulated. Null means all."""

    stale_correction: Literal["none", "decoupled"] = "none"
    """Where ratios are clipped: by default around the policy that acted; with `decoupled` around the policy at the
    start of the update, with importance weights for the difference (decoupled PPO)."""

    max_behavior_weight: Annotated[float, Field(ge=1)] = 5.0
    """Cap on the importance weights of decoupled PPO; only with stale_correction."""

    use_symmetry: bool = False
    """Also learn from mirrored steps, which the environment's `mirror(obs, action)` returns."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.98
    """Lambda of generalized advantage estimation (GAE): 0 bootstraps, 1 uses sampled returns."""

    reward_streams: Literal["summed", "averaged"] = "summed"
    """Sum all reward signals for one value head, or learn one value head per signal with its own gamma and average
    advantages."""


class POCASettings(PPOSettings):
    """POCA: PPO for agents in groups, with a critic that sees the whole group."""

    needs_teammates: ClassVar[bool] = True

    learning_rate: PositiveSchedule = constant(1e-3)
    """Learning rate of Adam; lower it, or let it decay to 0, for larger networks and batches."""

    batch_size: Count = 256
    """Minibatch size in steps."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalized advantage estimation (GAE): 0 bootstraps, 1 uses sampled returns."""

    clip_value: PositiveSchedule | None = constant(0.2)
    """Clip range of values and baselines around those at the start of an update; null does not clip them."""

    baseline_coef: NonNegative = 0.5
    """Coefficient of the baseline loss, relative to the value loss."""

    embedding_size: Annotated[Count, Field(multiple_of=4)] = 64
    """Size of the critic's embedding of each group member; 4 attention heads share it."""


class A2CSettings(AlgorithmSettings):
    """Advantage actor-critic (A2C): one gradient step on each batch, with GAE."""

    learning_rate: PositiveSchedule = constant(7e-4)
    """Learning rate of Adam."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Coefficient of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Coefficient of the value loss."""

    normalize_advantage: bool = False
    """Normalize the advantages of each batch to mean 0 and deviation 1."""

    gae_lambda: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Lambda of generalized advantage estimation (GAE): 0 bootstraps, 1 uses sampled returns."""


class GRPOSettings(AlgorithmSettings):
    """Group relative policy optimisation (GRPO): compares episodes with equal initial states, without a critic."""

    starts_fresh: ClassVar[bool] = True
    needs_groups: ClassVar[bool] = True

    clip_coef: PositiveSchedule = constant(0.2)
    """Clip range of the probability ratio around 1."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Coefficient of the entropy bonus."""

    kl_coef: NonNegative = 0.0
    """Coefficient of the KL penalty to the initial policy; 0 keeps no copy of it."""

    num_epochs: Count = 10
    """Epochs per batch."""

    batch_size: Count = 256
    """Minibatch size in steps."""


class OffPolicySettings(AlgorithmSettings):
    """Settings that all off-policy algorithms share: gradient steps on minibatches from the replay buffer."""

    needs_replay: ClassVar[bool] = True

    max_grad_norm: Positive | None = None
    """Maximum norm of the gradient; null does not clip it."""

    adam_eps: Positive = 1e-8
    """Epsilon in Adam's denominator, which keeps tiny gradients from becoming large steps."""

    batch_size: Count = 256
    """Minibatch size in transitions."""

    updates_per_step: Positive = 1.0
    """Gradient steps per environment step (the update-to-data ratio); may be below 1."""

    learning_starts: Count = 100
    """Environment steps before the first gradient step; until then actions are uniformly random."""


def _read_auto(value: object) -> object:
    return None if value == "auto" else value


_AUTO_FROM = re.compile(r"auto_(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)")


class SACSettings(OffPolicySettings):
    """Soft actor-critic (SAC): off-policy, with twin critics, a replay buffer and an entropy bonus."""

    tau: Fraction = 0.005
    """Coefficient of Polyak averaging (soft update) of the target networks after each gradient step."""

    entropy_coef: Annotated[NonNegative | None, BeforeValidator(_read_auto)] = None
    """Entropy coefficient (alpha); null or auto tunes it automatically to a target entropy."""

    initial_entropy_coef: Positive = 1.0
    """Initial entropy coefficient of automatic tuning."""

    target_entropy: Annotated[float | None, BeforeValidator(_read_auto)] = None
    """Target entropy of continuous actions; null or auto is minus their number."""

    target_entropy_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Target entropy of discrete actions, as a fraction of the maximum."""

    @model_validator(mode="before")
    @classmethod
    def _read_initial(cls, data: object) -> object:
        """Reads `auto_0.1` of Stable-Baselines3: tuned automatically, from 0.1 on."""
        coef = data.get("entropy_coef") if isinstance(data, Mapping) else None
        if not isinstance(data, Mapping) or not isinstance(coef, str) or not (found := _AUTO_FROM.fullmatch(coef)):
            return data
        return {**data, "entropy_coef": None, "initial_entropy_coef": float(found[1])}


class TD3Settings(OffPolicySettings):
    """Twin delayed DDPG (TD3): a deterministic policy, twin critics, target policy smoothing and delayed updates."""

    learning_rate: PositiveSchedule = constant(1e-3)
    """Learning rate of Adam, for the actor and the critics."""

    tau: Fraction = 0.005
    """Coefficient of Polyak averaging (soft update) of the target networks at each policy update."""

    policy_delay: Count = 2
    """Critic updates per update of the policy and the target networks (delayed policy updates)."""

    target_noise: NonNegative = 0.2
    """Standard deviation of the noise on target actions (target policy smoothing), for actions in [-1, 1]."""

    target_noise_clip: Positive = 0.5
    """Clip range of that noise."""


class DQNSettings(OffPolicySettings):
    """Deep Q-learning (DQN): Q-values of discrete actions, with a replay buffer and a target network."""

    learning_rate: PositiveSchedule = constant(1e-4)
    """Learning rate of Adam."""

    max_grad_norm: Positive | None = 10.0
    """Maximum norm of the gradient; null does not clip it."""

    batch_size: Count = 32
    """Minibatch size in transitions."""

    updates_per_step: Positive = 0.25
    """Gradient steps per environment step (the update-to-data ratio); may be below 1."""

    double: bool = False
    """Double DQN: the online network selects the next action, the target network evaluates it."""

    target_update_every: Count = 2500
    """Gradient steps between updates of the target network."""

    tau: Fraction = 1.0
    """Coefficient of Polyak averaging of the target network at each update; 1 copies the network (hard update)."""


class REINFORCESettings(AlgorithmSettings):
    """REINFORCE: one gradient step on the Monte Carlo returns of whole episodes, with or without a baseline.

    With policy.type actor_critic the value function is the baseline; actor_only has none.
    """

    starts_fresh: ClassVar[bool] = True

    learning_rate: PositiveSchedule = constant(1e-3)
    """Learning rate of Adam."""

    entropy_coef: NonNegativeSchedule = constant(0.0)
    """Coefficient of the entropy bonus."""

    value_coef: NonNegative = 0.5
    """Coefficient of the value loss of the baseline; no effect without one."""

    normalize_advantage: bool = True
    """Normalize the advantages of each batch to mean 0 and deviation 1."""


class TeamPPOSettings(PPOSettings):
    """PPO for each agent of a team by itself: a loss, an optimizer and a schedule of its own (IPPO)."""

    loss_type: Literal["clip", "kl_penalty"] = "clip"
    """Clip the probability ratio, or penalize the KL divergence with an adapted coefficient."""

    kl_target: NonNegative = 0.01
    """KL divergence that the penalty's coefficient is adapted to."""

    kl_beta: NonNegative = 1.0
    """Initial coefficient of the KL penalty."""

    kl_decrement: NonNegative = 0.5
    """Factor on the coefficient where the divergence is below the target by a factor of 1.5."""

    kl_increment: NonNegative = 2.0
    """Factor on the coefficient where the divergence exceeds the target by a factor of 1.5."""

    value_loss: Literal["l1", "l2", "smooth_l1"] = "smooth_l1"
    """Error of the critics."""

    update_schedules: dict[str, list[int]] = Field(default_factory=dict)
    """Period, start and stop by agent: it is updated where start <= iteration modulo period < stop."""


class TeamREINFORCESettings(TeamPPOSettings):
    """REINFORCE for each agent of a team by itself, with or without a critic."""

    steps_per_update: ClassVar[int] = 1024

    use_critic: bool = False
    """Weight log-probabilities by normalized GAE advantages; if not, by the discounted reward-to-go."""


_TEAM = {"policy": {"type": "team"}, "rollout": {"type": "block"}}
_WITHOUT_CRITIC = {"policy": {"type": "actor_only"}}
_REPLAYED = {"policy": {"type": "soft_actor"}, "rollout": {"type": "replay"}}

REGISTERED = (
    Registration("algorithm", "team_ppo", TeamPPOSettings, "quintain.algorithms.team_ppo:TeamPPO", _TEAM),
    Registration(
        "algorithm", "team_reinforce", TeamREINFORCESettings, "quintain.algorithms.team_ppo:TeamREINFORCE", _TEAM
    ),
    Registration("algorithm", "ppo", PPOSettings, "quintain.algorithms.ppo:PPO"),
    Registration("algorithm", "poca", POCASettings, "quintain.algorithms.poca:POCA", _WITHOUT_CRITIC),
    Registration(
        "algorithm", "a2c", A2CSettings, "quintain.algorithms.a2c:A2C", {"rollout": {"type": "block", "num_steps": 16}}
    ),
    Registration("algorithm", "grpo", GRPOSettings, "quintain.algorithms.grpo:GRPO", _WITHOUT_CRITIC),
    Registration("algorithm", "sac", SACSettings, "quintain.algorithms.sequence_sac:sac_for", _REPLAYED),
    Registration(
        "algorithm",
        "td3",
        TD3Settings,
        "quintain.algorithms.td3:TD3",
        {"policy": {"type": "deterministic_actor"}, "rollout": {"type": "replay"}},
    ),
    Registration(
        "algorithm",
        "dqn",
        DQNSettings,
        "quintain.algorithms.dqn:DQN",
        {"policy": {"type": "q_network"}, "rollout": {"type": "replay"}},
    ),
    Registration(
        "algorithm",
        "reinforce",
        REINFORCESettings,
        "quintain.algorithms.reinforce:REINFORCE",
        {"rollout": {"type": "block", "num_steps": 512}},
    ),
)
