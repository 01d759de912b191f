"""The environment checker: interface, side effects, statistics."""
