"""Learner ranks under Ray Train, undisturbed and ended from outside: `make test-ray` writes docs/results/ray_ranks.md.

Each cell is a run of its own with a local cluster, two ranks and a rollout actor for each. A run that was disturbed
must end with the digest of two ranks in `placement: local`, by itself or resumed, and nothing of its cluster may be
left. Then each rank has a node of an existing cluster to itself, and one of these nodes dies: with a third node the
digest must be the same again; without, the run must go on with one rank (`min_ranks`), and say that this is not exact.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.placements.ray_cells import GONE_SECONDS, await_gone, command_of, folders_of
from tests.placements.ray_cluster_cells import cluster, environment_of
from tests.placements.test_ray import _descendants
from tests.resume.outcome import digest_of
from tests.resume.test_workers import is_alive

ROWS = 6
"""Rows of metrics after which the signal is sent."""
SETTINGS = (
    "ppo", "CartPole-v1", "num_lanes=4", "num_steps=32", "batch_size=64", "num_epochs=2", "num_collectors=1",
    "max_staleness=1", "total_timesteps=12800", "seed=5", "checkpoint.every_updates=2", "report.every_updates=1",
    "events=[]",
)  # fmt: skip
HERE = ("placement=local", "placement.num_ranks=2")
RAY = ("placement=ray", "placement.num_ranks=2")
MIN_RANKS = "placement.min_ranks=1"
START_SECONDS = 400.0
RESULTS = warm.ROOT / "docs" / "results" / "ray_ranks.md"


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    name: str
    exit_code: int
    seconds: float
    """From the signal to the end of the driver, or the whole run where there was none."""
    gone: float
    """Seconds after the driver until nothing of the cluster was left, or `GONE_SECONDS`."""
    left: int
    """Processes of the cluster that lived then."""
    folders: int
    is_equal: bool
    what: str = ""


class Cell:
    """A run on Ray in a folder of its own name."""

    def __init__(self, folder: Path, run_id: str, *words: str, environment: dict[str, str] | None = None) -> None:
        self.folder, self.run_id = folder, run_id
        self.below: set[int] = set()
        self.own: set[Path] = set()
        """Folders of the cluster."""
        self.began = time.monotonic()
        self.output = folder / f"{run_id}.txt"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintain", "train", *SETTINGS, *RAY, *words, "--run-id", run_id],
                cwd=folder, env={**warm.ENVIRONMENT, **(environment or {})}, start_new_session=True, stdout=file,
                stderr=file,
            )  # fmt: skip

    @property
    def run(self) -> Path:
        return self.folder / "runs" / self.run_id

    def await_rows(self) -> None:
        """Waits until the run has written some rows, so that a checkpoint is behind it."""
        metrics = self.run / "metrics.jsonl"
        deadline = time.monotonic() + START_SECONDS
        while not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= ROWS):
            assert self.process.poll() is None, self.output.read_text()
            assert time.monotonic() < deadline, self.output.read_text()
            time.sleep(0.02)
        self.began = time.monotonic()
        self.look()

    def look(self) -> None:
        """Notes which processes and folders the cluster has."""
        self.below |= _descendants(self.process.pid) - {self.process.pid}
        self.own |= folders_of(self.below)

    def ranks(self) -> list[int]:
        """Returns the processes in which Ray Train runs ranks."""
        return sorted(pid for pid in self.below if "RayTrainWorker" in command_of(pid))

    def outcome(self, name: str, reference: str, *, resumes: bool = False, what: str = "") -> Outcome:
        """Waits for the end, looks for what is left, and resumes the run on this machine if it was stopped."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.look()
            time.sleep(0.2)
        exit_code = self.process.wait(timeout=1.0)
        assert exit_code == 0 or resumes, self.output.read_text()
        seconds = time.monotonic() - self.began
        gone = await_gone(self.below, self.own)
        left = sum(map(is_alive, self.below))
        folders = sum(each.exists() for each in self.own)
        hidden = [path for path in self.run.parent.iterdir() if path.name.startswith((".probe", ".ray"))]
        assert not hidden, hidden
        if resumes:
            run_here(self.folder, "resume", self.run_id, "placement=local", "placement.num_ranks=2")
        is_equal = digest_of(self.run) == reference
        return Outcome(name, exit_code, seconds, gone, left, folders, is_equal, what)


def run_here(folder: Path, *words: str) -> None:
    command = [sys.executable, "-m", "quintain", *words, "--quiet"]
    subprocess.run(command, cwd=folder, env=warm.ENVIRONMENT, timeout=300, check=True)


def undisturbed(folder: Path, reference: str) -> Outcome:
    return Cell(folder, "whole").outcome("none: 2 ranks on Ray", reference)


def killed_rank(folder: Path, reference: str) -> Outcome:
    cell = Cell(folder, "rank")
    cell.await_rows()
    ranks = cell.ranks()
    assert len(ranks) == 2, ranks
    os.kill(ranks[-1], signal.SIGKILL)
    found = cell.outcome("kill -9 of a rank", reference)
    text = cell.output.read_text()
    assert "warning[W0530]" in text, text
    return Outcome(**{**vars(found), "what": next(line for line in text.splitlines() if "W0530" in line)})


def signalled(folder: Path, name: str, number: signal.Signals, reference: str) -> Outcome:
    cell = Cell(folder, number.name.lower())
    cell.await_rows()
    what = refused(folder, cell.run_id) if number is signal.SIGTERM else ""
    cell.began = time.monotonic()
    cell.process.send_signal(number)
    return cell.outcome(name, reference, resumes=True, what=what)


def refused(folder: Path, run_id: str) -> str:
    """Returns the line with which a resume of a run that is being trained is refused."""
    command = [sys.executable, "-m", "quintain", "resume", run_id, *RAY]
    second = subprocess.run(command, cwd=folder, env=warm.ENVIRONMENT, capture_output=True, text=True, timeout=300)
    return next(line for line in second.stderr.splitlines() if "E0301" in line)


def killed_node(folder: Path, name: str, reference: str, num_nodes: int, *words: str) -> Outcome:
    """Kills a node that has a rank to itself, and so one of two ranks."""
    environment = environment_of("token")
    with cluster(environment, num_nodes) as nodes:
        own = (
            f"placement.address={nodes.address}",
            "placement.num_cpus_per_rank=1.5",
            "placement.num_cpus_per_actor=0.5",
        )
        cell = Cell(folder, f"node-{num_nodes}", *own, *words, environment=environment)
        cell.await_rows()
        ranks = [
            raylet
            for raylet in nodes.raylets
            if any("RayTrainWorker" in command_of(pid) for pid in _descendants(raylet))
        ]
        assert ranks, "no rank is on a node that can be killed"
        os.kill(ranks[0], signal.SIGKILL)
        found = cell.outcome(name, reference)
        below = {pid for raylet in nodes.raylets for pid in _descendants(raylet)}
        left = sum("RayTrainWorker" in command_of(pid) for pid in below)
    lines = [line for line in cell.output.read_text().splitlines() if "W0530" in line or "W0402" in line]
    return Outcome(**{**vars(found), "left": found.left + left, "what": "`, `".join(lines)})


def is_right(outcome: Outcome) -> bool:
    """Whether a cell came out as promised: fewer ranks are another run, which has to say so."""
    is_the_run = "W0402" in outcome.what if "one rank goes on" in outcome.name else outcome.is_equal
    return is_the_run and not outcome.left and not outcome.folders


def cells(folder: Path) -> Iterator[Outcome]:
    run_here(folder, "train", *SETTINGS, *HERE, "--run-id", "here")
    reference = digest_of(folder / "runs" / "here")
    yield undisturbed(folder, reference)
    yield killed_rank(folder, reference)
    yield signalled(folder, "kill -9 of the driver", signal.SIGKILL, reference)
    yield signalled(folder, "SIGTERM", signal.SIGTERM, reference)
    yield signalled(folder, "Ctrl-C", signal.SIGINT, reference)
    yield killed_node(folder, "kill -9 of a rank's node, one of three", reference, 3)
    yield killed_node(folder, "kill -9 of a rank's node, one of two: one rank goes on", reference, 2, MIN_RANKS)


def main() -> int:
    found: list[Outcome] = []
    with tempfile.TemporaryDirectory() as name:
        for cell in cells(Path(name)):
            print(cell, flush=True)
            found.append(cell)
            # As they are seen: one that fails takes nothing away from those before.
            RESULTS.write_text(page(found))
    return int(not all(map(is_right, found)))


def page(found: list[Outcome]) -> str:
    lines = [
        "# Ranks under Ray Train",
        "",
        "Written by `make test-ray`: a driver with a local cluster, two ranks that `TorchTrainer` runs, a rollout",
        "actor for each, PPO on CartPole, `max_staleness: 1`. Nodes that die are of an existing cluster, on which each",
        "rank has a node to itself. Times are from the signal to the end of the driver, on two shared cores; for the",
        "undisturbed run, and after a killed rank or node, of all that follows; then until nothing of the cluster was",
        f"left. What was left after {GONE_SECONDS:g} s is counted. Digests are compared with those of two ranks in",
        "`placement: local`, in which runs that were stopped are resumed; one rank has another.",
        "",
        "| event | exit code | seconds | gone after | processes left | folders left | digest |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.exit_code} | {each.seconds:.1f} | {each.gone:.1f} | {each.left} | {each.folders} | "
            f"{'equal' if each.is_equal else 'different'} |"
            for each in found
        ),
        "",
        *(f"- {each.name}: `{each.what}`" for each in found if each.what),
        "- The line of SIGTERM is of a second driver that wanted to resume the run while it was being trained.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
