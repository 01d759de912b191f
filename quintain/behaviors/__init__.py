"""ML-Agents' trainers on quintain's core: its settings files and names, with their meaning here."""

from __future__ import annotations

from quintain.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "AgentBuffer": "quintain.behaviors.buffer",
        "AgentBufferField": "quintain.behaviors.buffer",
        "AgentExperience": "quintain.behaviors.trajectory",
        "AgentManagerQueue": "quintain.behaviors.queues",
        "AgentStatus": "quintain.behaviors.trajectory",
        "BaseModelSaver": "quintain.behaviors.savers",
        "BufferKey": "quintain.behaviors.buffer",
        "EnvManager": "quintain.behaviors.controller",
        "ObservationKeyPrefix": "quintain.behaviors.buffer",
        "POCATrainer": "quintain.behaviors.algorithm_trainer",
        "PPOSettings": "quintain.behaviors.trainer_settings",
        "PPOTrainer": "quintain.behaviors.algorithm_trainer",
        "PPOTrainerSettings": "quintain.behaviors.trainer_settings",
        "Policy": "quintain.behaviors.policy",
        "RLTrainer": "quintain.behaviors.rl_trainer",
        "SACTrainer": "quintain.behaviors.algorithm_trainer",
        "SimpleEnvManager": "quintain.behaviors.controller",
        "StatsAggregationMethod": "quintain.behaviors.stats",
        "StatsReporter": "quintain.behaviors.stats",
        "StatsSummary": "quintain.behaviors.stats",
        "StatsWriter": "quintain.behaviors.stats",
        "Trainer": "quintain.behaviors.trainer",
        "TrainerController": "quintain.behaviors.controller",
        "TrainerFactory": "quintain.behaviors.controller",
        "TrainerSettings": "quintain.behaviors.trainer_settings",
        "Trajectory": "quintain.behaviors.trajectory",
    },
)
