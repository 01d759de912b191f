"""Services of every run besides learning: events, statistics, checkpoints, the run directory."""
