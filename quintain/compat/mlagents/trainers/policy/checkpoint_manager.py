"""Names of ML-Agents' `mlagents.trainers.policy.checkpoint_manager`."""

from quintain.behaviors.model_checkpoints import ModelCheckpoint, ModelCheckpointManager

__all__ = ["ModelCheckpoint", "ModelCheckpointManager"]
