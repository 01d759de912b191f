"""Names of mlagents.trainers.trajectory."""

from quintain.behaviors.trajectory import AgentExperience, AgentStatus, Trajectory

__all__ = ["AgentExperience", "AgentStatus", "Trajectory"]
