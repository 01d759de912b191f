"""Names of ML-Agents' `mlagents.trainers.policy.checkpoint_manager`."""

from quintain.services.model_checkpoints import ModelCheckpoint, ModelCheckpointManager

__all__ = ["ModelCheckpoint", "ModelCheckpointManager"]
