"""Cells of collectors: every number of them, in every placement, with and without kills, ends with the same digest.

`make test-collectors` runs all cells and writes docs/results/collectors.md; the suite runs a selection.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tests.hold import Hold, wait_for
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of
from tests.resume.test_workers import command, kill_after_checkpoint, num_committed, run

PLACEMENTS = ("local", "threads", "processes")
AXES: dict[str, tuple[Any, ...]] = {
    "algorithm": ("ppo", "sac"),
    "kind": ("lanes", "agents"),
    "num_collectors": (1, 2, 4),
    "max_staleness": (0, 1),
    "placement": PLACEMENTS,
    "is_killed": (False, True),
}


@dataclass(frozen=True)
class Cell:
    """One combination of all axes."""

    algorithm: str
    kind: str
    num_collectors: int
    max_staleness: int
    placement: str
    is_killed: bool

    def __str__(self) -> str:
        fate = "killed" if self.is_killed else "whole"
        return f"{self.algorithm}-{self.kind}-{self.num_collectors}-{self.max_staleness}-{self.placement}-{fate}"

    @property
    def reference(self) -> Cell:
        """The same experiment in another placement, undisturbed."""
        return replace(self, placement="threads" if self.placement == "local" else "local", is_killed=False)

    def settings(self) -> dict[str, Any]:
        """Returns the run file: some dozens of updates, with a checkpoint after every second one."""
        is_replay, are_agents = self.algorithm == "sac", self.kind == "agents"
        behavior: dict[str, Any] = {
            "algorithm": {"type": "ppo", "batch_size": 32, "num_epochs": 2},
            "policy": {"hidden_sizes": [8]},
            "rollout": {"max_staleness": self.max_staleness},
            "events": [],
        }
        if is_replay:
            behavior["algorithm"] = {"type": "sac", "batch_size": 16, "learning_starts": 64}
            behavior["rollout"] |= {"buffer_size": 2000, "num_steps": 64 if are_agents else 8}
        elif are_agents:
            behavior["rollout"] |= {"buffer_size": 64}
        else:
            behavior["rollout"] |= {"num_steps": 16}
        if are_agents:
            behavior["rollout"] |= {"type": "trajectory_replay" if is_replay else "trajectories", "time_horizon": 8}
            env = {"type": "agents", "id": "quintain.envs.agents.tasks:balance_ball", "kwargs": {"num_agents": 2}}
        else:
            behavior["rollout"]["type"] = "replay" if is_replay else "block"
            env = {"type": "gym", "id": "Pendulum-v1", "max_episode_steps": 25}
        return {
            "experiment": {
                "seed": 5,
                "budget": {"env_steps": 1280},
                "env": {**env, "num_lanes": 4, "num_collectors": self.num_collectors},
                "behaviors": {"Ball" if are_agents else "default": behavior},
            },
            "run": {
                "threads": 1,
                "writers": [],
                "report": {"every_updates": 1},
                "checkpoint": {"every_updates": 2, "every_seconds": None, "keep": 2},
            },
        }

    def play(self, folder: Path) -> tuple[str, list[dict[str, Any]]]:
        """Runs it to its end; returns the digest and the rows, which say their staleness only where it may be one."""
        run_id, directory = str(self), folder / "runs" / str(self)
        (folder / f"{self}.yaml").write_text(yaml.safe_dump(self.settings()))
        words: tuple[str, ...] = ("train", f"{self}.yaml", "--run-id", run_id)
        if self.is_killed:
            words = self._interrupted(folder, words)
        status, printed = run(folder, *words, placed(self.placement, self.num_collectors))
        assert status == 0, printed
        rows = [{k: v for k, v in row.items() if k != "rollout/staleness"} for row in rows_of(directory)]
        return digest_of(directory), rows

    def _interrupted(self, folder: Path, words: tuple[str, ...]) -> tuple[str, ...]:
        """Kills the run, resumes it elsewhere, and stops it there; returns the words that resume it again."""
        directory, chance = folder / "runs" / str(self), random.Random(str(self))
        where = placed(self.placement, self.num_collectors)
        kill_after_checkpoint(folder, (*words, where), directory, chance.uniform(0.0, 0.03), row=6)
        words = ("resume", str(self))
        elsewhere = PLACEMENTS[(PLACEMENTS.index(self.placement) + 1) % len(PLACEMENTS)]
        hold, before = Hold(folder, 12), num_committed(directory)
        process = command(folder, *words, placed(elsewhere, self.num_collectors), hold=hold)
        wait_for(lambda: num_committed(directory) > before or hold.is_reached(12), process)
        time.sleep(chance.uniform(0.0, 0.03))
        process.terminate()
        hold.let_go()
        _, printed = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM, printed
        assert_every_checkpoint_is_sound(directory)
        return words


def placed(placement: str, num_collectors: int) -> str:
    """Returns the override of a placement; two processes share four collectors."""
    more = {"num_processes": 2} if placement == "processes" and num_collectors == 4 else {}
    return f"run.placement={json.dumps({'type': placement, **more})}"


def every_cell() -> Iterator[Cell]:
    return (Cell(*values) for values in itertools.product(*AXES.values()))


def pairwise() -> list[Cell]:
    """Returns few cells in which every value of each axis meets every value of each other axis."""
    names, chosen = list(AXES), []

    def pairs(cell: Cell) -> set[tuple[str, Any, str, Any]]:
        return {(a, getattr(cell, a), b, getattr(cell, b)) for a, b in itertools.combinations(names, 2)}

    missing = set().union(*map(pairs, every_cell()))
    while missing:
        best = max(every_cell(), key=lambda cell: len(pairs(cell) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def main() -> None:
    """Runs all cells, and writes the results."""
    outcomes: dict[Cell, tuple[str, list[dict[str, Any]]]] = {}
    equal: dict[Cell, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        for cell in every_cell():
            for each in (cell.reference, cell):
                if each not in outcomes:
                    outcomes[each] = each.play(Path(folder))
            equal[cell] = outcomes[cell] == outcomes[cell.reference]
            print(cell, outcomes[cell][0][:12], "equal" if equal[cell] else "DIFFERENT", flush=True)
    Path("docs/results/collectors.md").write_text(report(equal, outcomes))
    sys.exit(not all(equal.values()))


def report(equal: dict[Cell, bool], outcomes: dict[Cell, tuple[str, list[dict[str, Any]]]]) -> str:
    """Returns a table with a row for each experiment."""
    lines = [
        "# Collectors: the same digest in every placement",
        "",
        "Written by `make test-collectors`. A row is an experiment. Every placement runs it to its end, and once more",
        "with a SIGKILL after a checkpoint, a resume in the next placement, a SIGTERM there, and a resume. `yes`: the",
        "digest and all rows of metrics are those of the run that was not disturbed. Four collectors are in two",
        "processes.",
        "",
        f"{sum(equal.values())} of {len(equal)} cells are equal.",
        "",
        "| experiment | `num_collectors` | `max_staleness` | digest | "
        + " | ".join(f"{placement}, {fate}" for placement in PLACEMENTS for fate in ("whole", "killed"))
        + " |",
        "|---" * (4 + 2 * len(PLACEMENTS)) + "|",
    ]
    for algorithm, kind, num, stale in itertools.product(*list(AXES.values())[:4]):
        cells = [Cell(algorithm, kind, num, stale, place, killed) for place in PLACEMENTS for killed in (False, True)]
        said = " | ".join("yes" if equal[cell] else "**no**" for cell in cells)
        lines.append(f"| {algorithm}, {kind} | {num} | {stale} | `{outcomes[cells[0]][0][:12]}` | {said} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
