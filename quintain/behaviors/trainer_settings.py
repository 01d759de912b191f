"""ML-Agents' settings of one behaviour: every key of its YAML files with its default. Imports no torch.

Unknown keys are refused at every depth, and so are numbers that cannot work. What a key means here is said in
`translate`; keys of what is not built yet are known, checked, and refused there by name.
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
    """Holds what all trainers have."""

    batch_size: Count = 1024
    """Steps in one minibatch."""

    buffer_size: Count = 10_240
    """Steps that are collected before an update, or kept for replay."""

    learning_rate: Positive = 3e-4
    """Step size of Adam."""

    learning_rate_schedule: ScheduleType = "linear"
    """Whether the step size falls to almost nothing over max_steps."""

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
    """Holds what PPO and POCA have."""

    beta: NonNegative = 5e-3
    """Weight of the entropy bonus."""

    beta_schedule: ScheduleType = "linear"
    """Whether it falls over max_steps; as learning_rate_schedule where only that is given."""

    epsilon: Positive = 0.2
    """How far the probability ratio may leave 1."""

    epsilon_schedule: ScheduleType = "linear"
    """Whether it falls to 0.1 over max_steps; as learning_rate_schedule where only that is given."""

    lambd: Fraction = 0.95
    """Mix of bootstrapped (0) and sampled (1) returns."""

    num_epoch: Count = 3
    """Passes over each buffer."""

    @model_validator(mode="before")
    @classmethod
    def _schedules_follow(cls, data: object) -> object:
        if not isinstance(data, Mapping) or "learning_rate_schedule" not in data:
            return data
        schedule = data["learning_rate_schedule"]
        return {"beta_schedule": schedule, "epsilon_schedule": schedule, **data}


class PPOSettings(OnPolicyHyperparameterSettings):
    """Configures PPO."""

    shared_critic: bool = False
    """Let actor and critic share their layers."""


class POCASettings(OnPolicyHyperparameterSettings):
    """Configures POCA."""


class SACSettings(HyperparameterSettings):
    """Configures SAC."""

    batch_size: Count = 128
    """Transitions in one minibatch."""

    buffer_size: Count = 50_000
    """Transitions that are kept."""

    learning_rate_schedule: ScheduleType = "constant"
    """Whether the step size falls to almost nothing over max_steps."""

    buffer_init_steps: Natural = 0
    """Steps before the first update."""

    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Part of the way that targets move at each update."""

    steps_per_update: Positive = 1.0
    """Steps of agents for each update."""

    save_replay_buffer: bool = False
    """Keep the replay with each checkpoint; here it always is."""

    init_entcoef: Positive = 1.0
    """The temperature that adapting starts from."""

    reward_signal_steps_per_update: Positive | None = None
    """Steps for each update of reward signals; null is steps_per_update."""


class TrainerSettings(Settings):
    """Describes how one behaviour is trained."""

    trainer_type: Literal["ppo", "sac", "poca"] = "ppo"
    """The algorithm."""

    hyperparameters: HyperparameterSettings = HyperparameterSettings()
    """Its numbers."""

    network_settings: NetworkSettings = NetworkSettings()
    """The policy's networks."""

    reward_signals: RewardSignals = RewardSignals(extrinsic=RewardSignalSettings())
    """What counts as good."""

    max_steps: Count = 500_000
    """Steps of the behaviour's agents to train for."""

    time_horizon: Count = 64
    """Steps after which a trajectory is cut."""

    summary_freq: Count = 50_000
    """Steps between two rows of metrics."""

    checkpoint_interval: Count = 500_000
    """Steps between two checkpoints."""

    keep_checkpoints: Whole = 5
    """Checkpoints that are kept; 0 keeps all."""

    even_checkpoints: bool = False
    """Spread keep_checkpoints checkpoints evenly over max_steps."""

    threaded: bool = False
    """Learn while agents act on."""

    init_path: str | None = None
    """A policy to begin with."""

    self_play: SelfPlaySettings | None = None
    """Play against the past."""

    behavioral_cloning: BehavioralCloningSettings | None = None
    """Imitate demonstrations."""

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
    """Describes how a behaviour is trained by PPO."""

    trainer_type: Literal["ppo"] = "ppo"
    """The algorithm."""

    hyperparameters: PPOSettings = PPOSettings()
    """Its numbers."""


class SACTrainerSettings(TrainerSettings):
    """Describes how a behaviour is trained by SAC."""

    trainer_type: Literal["sac"] = "sac"
    """The algorithm."""

    hyperparameters: SACSettings = SACSettings()
    """Its numbers."""


class POCATrainerSettings(TrainerSettings):
    """Describes how a behaviour is trained by POCA."""

    trainer_type: Literal["poca"] = "poca"
    """The algorithm."""

    hyperparameters: POCASettings = POCASettings()
    """Its numbers."""


TRAINERS: Mapping[str, type[TrainerSettings]] = {
    "ppo": PPOTrainerSettings,
    "sac": SACTrainerSettings,
    "poca": POCATrainerSettings,
}
"""The settings of a behaviour by its trainer, so that each knows its own numbers and no other."""
