"""Statistics, writers, console and logs of a run."""
