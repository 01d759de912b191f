"""Child processes: fork server, supervisor, shared memory, signals, restart budgets."""
