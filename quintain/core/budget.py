"""How long a run trains. Imports nothing heavy: settings know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """How long to train: environment steps, updates, or whichever of both is spent first."""

    env_steps: int | None = None
    updates: int | None = None

    def __str__(self) -> str:
        given = ((self.env_steps, "steps"), (self.updates, "updates"))
        return " or ".join(f"{count} {unit}" for count, unit in given if count is not None)
