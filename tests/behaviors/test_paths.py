"""Every name of ML-Agents that exists here is found at ML-Agents' own path below `quintain.compat`."""

from __future__ import annotations

import importlib

import pytest

PATHS = {
    "mlagents.trainers.trainer": ["Trainer"],
    "mlagents.trainers.trainer.trainer": ["Trainer"],
    "mlagents.trainers.trainer.rl_trainer": ["RLTrainer"],
    "mlagents.trainers.trainer.trainer_factory": ["TrainerFactory"],
    "mlagents.trainers.ppo": ["PPOTrainer"],
    "mlagents.trainers.ppo.trainer": ["PPOTrainer"],
    "mlagents.trainers.poca": ["POCATrainer"],
    "mlagents.trainers.poca.trainer": ["POCATrainer"],
    "mlagents.trainers.sac": ["SACTrainer"],
    "mlagents.trainers.sac.trainer": ["SACTrainer"],
    "mlagents.trainers.policy": ["Policy"],
    "mlagents.trainers.policy.policy": ["Policy"],
    "mlagents.trainers.policy.checkpoint_manager": ["ModelCheckpoint", "ModelCheckpointManager"],
    "mlagents.trainers.buffer": ["AgentBuffer", "AgentBufferField", "BufferKey", "ObservationKeyPrefix"],
    "mlagents.trainers.agent_processor": ["AgentManagerQueue"],
    "mlagents.trainers.trajectory": ["AgentExperience", "AgentStatus", "Trajectory"],
    "mlagents.trainers.stats": ["StatsAggregationMethod", "StatsReporter", "StatsSummary", "StatsWriter"],
    "mlagents.trainers.trainer_controller": ["TrainerController"],
    "mlagents.trainers.env_manager": ["EnvManager"],
    "mlagents.trainers.simple_env_manager": ["SimpleEnvManager"],
    "mlagents.trainers.model_saver": ["BaseModelSaver"],
    "mlagents.trainers.model_saver.model_saver": ["BaseModelSaver"],
    "mlagents.trainers.settings": ["TrainerSettings", "NetworkSettings", "RunOptions", "SelfPlaySettings"],
    "mlagents_envs.base_env": [
        "ActionSpec", "ActionTuple", "BaseEnv", "BehaviorSpec", "DecisionStep", "DecisionSteps", "DimensionProperty",
        "ObservationSpec", "ObservationType", "TerminalStep", "TerminalSteps",
    ],
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_names_are_where_they_were(path: str) -> None:
    module = importlib.import_module(f"quintain.compat.{path}")
    assert [name for name in PATHS[path] if not isinstance(getattr(module, name, None), type)] == []
    assert set(PATHS[path]) <= set(module.__all__)
