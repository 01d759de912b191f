"""Vocabulary that every room shares: random streams, state, progress, process groups, registries. Imports no torch."""
