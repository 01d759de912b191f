"""Data-parallel ranks of one run: starting, following, gathering their state."""
