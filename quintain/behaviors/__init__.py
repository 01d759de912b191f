"""ML-Agents' trainers on the core: its settings files, its names, and what they mean here."""
