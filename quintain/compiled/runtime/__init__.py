"""Compiles kernels with numba, keeps their machine code, and calls it. Knows neither policies nor algorithms."""
