"""Names of mlagents.trainers.settings."""

from quintain.behaviors.run_options import (
    CheckpointSettings,
    EngineSettings,
    EnvironmentSettings,
    RunOptions,
    TorchSettings,
)
from quintain.behaviors.trainer_settings import (
    BehavioralCloningSettings,
    CuriositySettings,
    GAILSettings,
    HyperparameterSettings,
    NetworkSettings,
    OnPolicyHyperparameterSettings,
    RewardSignalSettings,
    RNDSettings,
    SelfPlaySettings,
    TrainerSettings,
)

__all__ = [
    "BehavioralCloningSettings",
    "CheckpointSettings",
    "CuriositySettings",
    "EngineSettings",
    "EnvironmentSettings",
    "GAILSettings",
    "HyperparameterSettings",
    "NetworkSettings",
    "OnPolicyHyperparameterSettings",
    "RNDSettings",
    "RewardSignalSettings",
    "RunOptions",
    "SelfPlaySettings",
    "TorchSettings",
    "TrainerSettings",
]
