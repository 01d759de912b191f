"""Detects whether torchrun, or a compatible launcher, started this process as one of several ranks."""

from __future__ import annotations

import os

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def place_in_torchrun() -> tuple[int, int] | None:
    """Returns this process's rank and the number of ranks; None if it was started alone."""
    if not all(os.environ.get(name) for name in _NEEDED):
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return (rank, size) if size > 1 else None


def is_follower() -> bool:
    """Whether torchrun started this process as a rank other than 0."""
    place = place_in_torchrun()
    return place is not None and place[0] > 0
