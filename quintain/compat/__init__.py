"""The names of other frameworks at their own paths: change the root of an import, and nothing else."""
