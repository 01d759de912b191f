"""Compiles kernels with numba, caches their machine code, and calls it. Independent of policies and algorithms."""
