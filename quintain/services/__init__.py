"""What every run needs besides learning: events, statistics, checkpoints, the run directory."""
