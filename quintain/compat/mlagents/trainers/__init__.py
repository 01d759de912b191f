"""Names of mlagents.trainers."""
