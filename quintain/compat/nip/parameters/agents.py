"""Names of nip.parameters.agents."""

from quintain.experiments.agents_parameters import (
    ActivationType,
    AgentParameters,
    AgentsParameters,
    AgentUpdateSchedule,
    AlternatingPeriodicUpdateSchedule,
    CodeValidationAgentParameters,
    ConstantUpdateSchedule,
    ContiguousPeriodicUpdateSchedule,
    GraphIsomorphismAgentParameters,
    ImageClassificationAgentParameters,
    LrFactors,
    PureTextAgentParameters,
    RandomAgentParameters,
)

__all__ = [
    "ActivationType",
    "AgentParameters",
    "AgentUpdateSchedule",
    "AgentsParameters",
    "AlternatingPeriodicUpdateSchedule",
    "CodeValidationAgentParameters",
    "ConstantUpdateSchedule",
    "ContiguousPeriodicUpdateSchedule",
    "GraphIsomorphismAgentParameters",
    "ImageClassificationAgentParameters",
    "LrFactors",
    "PureTextAgentParameters",
    "RandomAgentParameters",
]
