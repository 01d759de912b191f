"""Runs a function on several real ranks, each a process of its own, and brings back what they return."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from quintain.core.process_group import GlooGroup
from tests import warm

Arrays = dict[str, Any]
"""What a rank returns: arrays by name."""


def on_ranks(size: int, folder: Path, function: Callable[..., Arrays], *arguments: Any) -> list[Arrays]:
    """Calls `function(world, *arguments)` on every rank and returns the arrays of each."""
    place = str(folder / "meeting")
    call = Path(f"{place}-call")
    call.write_bytes(pickle.dumps((function, arguments)))
    code = "import sys; from tests.ranks.party import attend; attend(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
    words = [[sys.executable, "-c", code, str(rank), str(size), place] for rank in range(size)]
    processes = [warm.Popen(each, env=warm.ENVIRONMENT) for each in words]
    try:
        ends = [process.wait(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert ends == [0] * size, ends
    return [dict(np.load(f"{place}-{rank}.npz")) for rank in range(size)]


def attend(rank: int, size: int, place: str) -> None:
    """Goes on as one of the ranks."""
    from quintain.placements.rank_processes import meet_on_this_machine

    function, arguments = pickle.loads(Path(f"{place}-call").read_bytes())
    world: GlooGroup = meet_on_this_machine(rank, size, place)
    np.savez(f"{place}-{rank}.npz", **function(world, *arguments))
    world.barrier()
    world.close()
