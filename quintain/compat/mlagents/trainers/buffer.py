"""Names of mlagents.trainers.buffer."""

from quintain.behaviors.buffer import AgentBuffer, AgentBufferField, BufferKey, ObservationKeyPrefix

__all__ = ["AgentBuffer", "AgentBufferField", "BufferKey", "ObservationKeyPrefix"]
