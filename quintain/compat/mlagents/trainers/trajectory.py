"""Names of mlagents.trainers.trajectory."""

from quintain.behaviors.trajectory import AgentExperience, Trajectory

__all__ = ["AgentExperience", "Trajectory"]
