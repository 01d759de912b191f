"""Names of mlagents.trainers.policy.policy."""

from quintain.behaviors.policy import Policy

__all__ = ["Policy"]
