"""Names of mlagents.trainers.policy."""

from quintain.behaviors.policy import Policy

__all__ = ["Policy"]
