"""Checkpoints: commit protocol, catalogue, file format."""
