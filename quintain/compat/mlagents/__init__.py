"""Names of the package mlagents."""
