"""ML-Agents' settings of one behaviour: every key of its YAML files with its default. Imports no torch.

Unknown keys are refused at every depth, and so are invalid values. `translate` defines the meaning of each key; keys of
unsupported features are known, checked, and refused there by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from quintain.behaviors.part_settings import (
    BehavioralCloningSettings,
    Fraction,
    Natural,
    NetworkSettings,
    NonNegative,
    Positive,
    RewardSignals,
    RewardSignalSettings,
    ScheduleType,
    SelfPlaySettings,
    Whole,
)
from quintain.settings.base import Count, Settings


class HyperparameterSettings(Settings):
    """Settings of all trainers."""

    batch_size: Count = 1024
    """Minibatch size in steps."""

    buffer_size: Count = 10_240
    """Steps collected before an update, or the capacity of the replay buffer."""

    learning_rate: Positive = 3e-4
    """Learning rate of Adam."""

    learning_rate_schedule: ScheduleType = "linear"
    """Whether the learning rate decays to almost 0 over max_steps."""

    @model_validator(mode="after")
    def _minibatch_fits(self) -> HyperparameterSettings:
        if self.batch_size > self.buffer_size:
            raise PydanticCustomError(
                "batch_size",
                "batch_size {batch} is more than buffer_size {buffer}, so that nothing would ever be learned; lower "
                "it, or raise buffer_size",
                {"batch": self.batch_size, "buffer": self.buffer_size, "code": "E0215"},
            )
        return self


class OnPolicyHyperparameterSettings(HyperparameterSettings):
    """Settings of PPO and POCA."""

    beta: NonNegative = 5e-3
    """Coefficient of the entropy bonus."""

    beta_schedule: ScheduleType = "linear"
    """Whether beta decays over max_steps; like learning_rate_schedule if only that is given."""

    epsilon: Positive = 0.2
    """Clip range of the probability ratio."""

    epsilon_schedule: ScheduleType = "linear"
    """Whether epsilon decays to 0.1 over max_steps; like learning_rate_schedule if only that is given."""

    lambd: Fraction = 0.95
    """Lambda of generalized advantage estimation (GAE): 0 bootstraps, 1 uses sampled returns."""

    num_epoch: Count = 3
    """Epochs per buffer."""

    @model_validator(mode="before")
    @classmethod
    def _schedules_follow(cls, data: object) -> object:
        if not isinstance(data, Mapping) or "learning_rate_schedule" not in data:
            return data
        schedule = data["learning_rate_schedule"]
        return {"beta_schedule": schedule, "epsilon_schedule": schedule, **data}


class PPOSettings(OnPolicyHyperparameterSettings):
    """Settings of PPO."""

    shared_critic: bool = False
    """Actor and critic share their layers."""


class POCASettings(OnPolicyHyperparameterSettings):
    """Settings of POCA."""


class SACSettings(HyperparameterSettings):
    """Settings of SAC."""

    batch_size: Count = 128
    """Minibatch size in transitions."""

    buffer_size: Count = 50_000
    """Capacity of the replay buffer in transitions."""

    learning_rate_schedule: ScheduleType = "constant"
    """Whether the learning rate decays to almost 0 over max_steps."""

    buffer_init_steps: Natural = 0
    """Steps before the first update."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Coefficient of Polyak averaging (soft update) of the target networks."""

    steps_per_update: Positive = 1.0
    """Steps of agents per update."""

    save_replay_buffer: bool = False
    """Save the replay buffer with each checkpoint; here it always is."""

    init_entcoef: Positive = 1.0
    """Initial entropy coefficient (alpha), which is then tuned."""

    reward_signal_steps_per_update: Positive | None = None
    """Steps per update of reward signals; null is steps_per_update."""


class TrainerSettings(Settings):
    """Settings for training one behaviour."""

    trainer_type: Literal["ppo", "sac", "poca"] = "ppo"
    """The algorithm."""

    hyperparameters: HyperparameterSettings = HyperparameterSettings()
    """Its hyperparameters."""

    network_settings: NetworkSettings = NetworkSettings()
    """The policy's networks."""

    reward_signals: RewardSignals = RewardSignals(extrinsic=RewardSignalSettings())
    """The reward signals."""

    max_steps: Count = 500_000
    """Number of steps of the behaviour's agents to train for."""

    time_horizon: Count = 64
    """Maximum steps of a trajectory before it is bootstrapped."""

    summary_freq: Count = 50_000
    """Steps between two rows of metrics."""

    checkpoint_interval: Count = 500_000
    """Steps between two checkpoints."""

    keep_checkpoints: Whole = 5
    """Number of checkpoints to keep; 0 keeps all."""

    even_checkpoints: bool = False
    """Distribute keep_checkpoints checkpoints evenly over max_steps."""

    threaded: bool = False
    """Asynchronous training: agents continue to act during updates."""

    init_path: str | None = None
    """A policy to start from."""

    self_play: SelfPlaySettings | None = None
    """Self-play against past versions."""

    behavioral_cloning: BehavioralCloningSettings | None = None
    """Behavioural cloning from demonstrations."""

    framework: str | None = None
    """Ignored; there is only one."""

    @model_validator(mode="after")
    def _sequences_fit(self) -> TrainerSettings:
        memory = self.network_settings.memory
        if memory is not None and memory.sequence_length > self.hyperparameters.batch_size:
            raise PydanticCustomError(
                "sequence_length",
                "network_settings.memory.sequence_length {length} is more than hyperparameters.batch_size {batch}",
                {"length": memory.sequence_length, "batch": self.hyperparameters.batch_size},
            )
        return self


class PPOTrainerSettings(TrainerSettings):
    """Settings for training a behaviour by PPO."""

    trainer_type: Literal["ppo"] = "ppo"
    """The algorithm."""

    hyperparameters: PPOSettings = PPOSettings()
    """Its hyperparameters."""


class SACTrainerSettings(TrainerSettings):
    """Settings for training a behaviour by SAC."""

    trainer_type: Literal["sac"] = "sac"
    """The algorithm."""

    hyperparameters: SACSettings = SACSettings()
    """Its hyperparameters."""


class POCATrainerSettings(TrainerSettings):
    """Settings for training a behaviour by POCA."""

    trainer_type: Literal["poca"] = "poca"
    """The algorithm."""

    hyperparameters: POCASettings = POCASettings()
    """Its hyperparameters."""


TRAINERS: Mapping[str, type[TrainerSettings]] = {
    "ppo": PPOTrainerSettings,
    "sac": SACTrainerSettings,
    "poca": POCATrainerSettings,
}
"""The settings of a behaviour by its trainer, so that each has its own hyperparameters only."""
