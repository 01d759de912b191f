"""Names of mlagents.trainers.settings."""

from quintain.behaviors.part_settings import (
    BehavioralCloningSettings,
    CuriositySettings,
    GAILSettings,
    NetworkSettings,
    RewardSignalSettings,
    RNDSettings,
    SelfPlaySettings,
)
from quintain.behaviors.run_options import (
    CheckpointSettings,
    EngineSettings,
    EnvironmentSettings,
    RunOptions,
    TorchSettings,
)
from quintain.behaviors.trainer_settings import (
    HyperparameterSettings,
    OnPolicyHyperparameterSettings,
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
