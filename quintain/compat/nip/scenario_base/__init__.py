"""nip.scenario_base: import-only paths."""
