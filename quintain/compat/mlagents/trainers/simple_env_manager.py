"""Names of mlagents.trainers.simple_env_manager."""

from quintain.behaviors.controller import SimpleEnvManager

__all__ = ["SimpleEnvManager"]
