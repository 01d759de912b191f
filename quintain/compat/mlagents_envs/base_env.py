"""Names of mlagents_envs.base_env."""

from quintain.envs.agents.env import BaseEnv
from quintain.envs.agents.specs import (
    ActionSpec,
    ActionTuple,
    BehaviorSpec,
    DimensionProperty,
    ObservationSpec,
    ObservationType,
)
from quintain.envs.agents.steps import DecisionStep, DecisionSteps, TerminalStep, TerminalSteps

__all__ = [
    "ActionSpec",
    "ActionTuple",
    "BaseEnv",
    "BehaviorSpec",
    "DecisionStep",
    "DecisionSteps",
    "DimensionProperty",
    "ObservationSpec",
    "ObservationType",
    "TerminalStep",
    "TerminalSteps",
]
