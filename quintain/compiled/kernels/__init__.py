"""Compiled functions. Cached machine code is named by a digest of this folder: kernels import nothing else."""
