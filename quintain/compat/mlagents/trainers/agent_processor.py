"""Names of mlagents.trainers.agent_processor."""

from quintain.behaviors.queues import AgentManagerQueue

__all__ = ["AgentManagerQueue"]
