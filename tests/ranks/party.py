"""Runs a function on several real ranks, each a process of its own, and brings back what they return."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quintain.core.process_group import Gloo

Arrays = dict[str, Any]
"""What a rank returns: arrays by name."""


def on_ranks(size: int, folder: Path, function: Callable[..., Arrays], *arguments: Any) -> list[Arrays]:
    """Calls `function(world, *arguments)` on every rank and returns the arrays of each."""
    context = multiprocessing.get_context("spawn")
    place = str(folder / "meeting")
    processes = [context.Process(target=_attend, args=(rank, size, place, function, arguments)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=200)
    ends = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ends == [0] * size, ends
    return [dict(np.load(f"{place}-{rank}.npz")) for rank in range(size)]


def _attend(rank: int, size: int, place: str, function: Callable[..., Arrays], arguments: tuple[Any, ...]) -> None:
    from quintain.placements.rank_processes import meet_on_this_machine

    world: Gloo = meet_on_this_machine(rank, size, place)
    np.savez(f"{place}-{rank}.npz", **function(world, *arguments))
    world.barrier()
    world.close()
