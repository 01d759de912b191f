"""Shared by all packages: random streams, state, progress, process groups, registries. Imports no torch."""
