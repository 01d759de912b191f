"""Names of mlagents.trainers.env_manager."""

from quintain.behaviors.controller import EnvManager

__all__ = ["EnvManager"]
