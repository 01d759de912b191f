"""Names of the package mlagents_envs."""
