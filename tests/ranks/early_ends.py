"""Ranks that end before all are connected; as a program, rank 0 of such a group, which prints what it was told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from quintain.errors import EnvError, RankError
from quintain.placements.rank_processes import RankProcesses, send_report


def dies_while_it_imports(rank: int, size: int, place: str, code: str, report: Any) -> None:
    os._exit(7)


def fails_while_it_imports(rank: int, size: int, place: str, code: str, report: Any) -> None:
    send_report(report, EnvError("the camera is in use", code="E0505"), "")
    os._exit(5)


def dies_while_it_connects(rank: int, size: int, place: str, code: str, report: Any) -> None:
    Path(place).with_name(f"here-{rank}").touch()
    os._exit(7)


def main(name: str) -> None:
    ranks = RankProcesses(2, globals()[name])
    try:
        with ranks.explaining():
            ranks.meet()
    except (RankError, EnvError) as error:
        print(error.code, error.message)
    ranks.close()
    assert not ranks.folder.exists()
    sys.stdout.flush()
    # The thread that waits for the other rank would go on waiting.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
