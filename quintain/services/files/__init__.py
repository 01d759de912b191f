"""The run directory and durable file operations."""
