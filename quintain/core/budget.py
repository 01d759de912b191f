"""The training budget. Imports nothing heavy: settings use it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """The training budget: environment steps, updates, or the first of both."""

    env_steps: int | None = None
    updates: int | None = None

    def __str__(self) -> str:
        given = ((self.env_steps, "steps"), (self.updates, "updates"))
        return " or ".join(f"{count} {unit}" for count, unit in given if count is not None)
