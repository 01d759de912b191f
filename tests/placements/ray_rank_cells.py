"""Learner ranks under Ray Train, undisturbed and ended from outside: `make test-ray` writes docs/results/ray_ranks.md.

Each cell is a run of its own with a local cluster, two ranks and a rollout actor for each. A run that was disturbed
must end with the digest of two ranks in `placement: local`, by itself or resumed, and nothing of its cluster may be
left.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests import warm
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
START_SECONDS = 400.0
RESULTS = warm.ROOT / "docs" / "results" / "ray_ranks.md"


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    name: str
    exit_code: int
    seconds: float
    """From the signal to the end of the driver, or the whole run where there was none."""
    left: int
    """Processes of the cluster that lived a second after the driver."""
    folders: int
    is_equal: bool
    what: str = ""


class Cell:
    """A run on Ray in a folder of its own name."""

    def __init__(self, folder: Path, run_id: str, *words: str) -> None:
        self.folder, self.run_id = folder, run_id
        self.below: set[int] = set()
        self.own: set[str] = set()
        """Folders of the cluster, which the commands of its processes name; other clusters may come and go."""
        self.began = time.monotonic()
        self.output = folder / f"{run_id}.txt"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "quintain", "train", *SETTINGS, *RAY, *words, "--run-id", run_id],
                cwd=folder, env=warm.ENVIRONMENT, start_new_session=True, stdout=file, stderr=file,
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
        self.own |= {name for pid in self.below for name in re.findall(r"quintain-ray-\w+", _command(pid))}

    def ranks(self) -> list[int]:
        """Returns the processes in which Ray Train runs ranks."""
        return sorted(pid for pid in self.below if "RayTrainWorker" in _command(pid))

    def outcome(self, name: str, reference: str, *, resumes: bool = False, what: str = "") -> Outcome:
        """Waits for the end, looks for what is left, and resumes the run on this machine if it was stopped."""
        deadline = time.monotonic() + START_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.look()
            time.sleep(0.2)
        exit_code = self.process.wait(timeout=1.0)
        assert exit_code == 0 or resumes, self.output.read_text()
        seconds = time.monotonic() - self.began
        time.sleep(1.0)
        left = sum(map(is_alive, self.below))
        new = [each for place in {tempfile.gettempdir(), "/tmp"} for each in self.own if Path(place, each).exists()]
        hidden = [path for path in self.run.parent.iterdir() if path.name.startswith((".probe", ".ray"))]
        assert not hidden, hidden
        if resumes:
            run_here(self.folder, "resume", self.run_id, "placement=local", "placement.num_ranks=2")
        is_equal = digest_of(self.run) == reference
        return Outcome(name, exit_code, seconds, left, len(new), is_equal, what)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


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


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run_here(folder, "train", *SETTINGS, *HERE, "--run-id", "here")
        reference = digest_of(folder / "runs" / "here")
        found = [
            undisturbed(folder, reference),
            killed_rank(folder, reference),
            signalled(folder, "kill -9 of the driver", signal.SIGKILL, reference),
            signalled(folder, "SIGTERM", signal.SIGTERM, reference),
            signalled(folder, "Ctrl-C", signal.SIGINT, reference),
        ]
    lines = [
        "# Ranks under Ray Train",
        "",
        "Written by `make test-ray`: a driver with a local cluster, two ranks that `TorchTrainer` runs, a rollout",
        "actor for each, PPO on CartPole, `max_staleness: 1`. Times are from the signal to the end of the driver, on",
        "two shared cores; for the undisturbed run, and after a killed rank, of all that follows. Digests are",
        "compared with those of two ranks in `placement: local`, in which runs that were stopped are resumed.",
        "",
        "| event | exit code | seconds | processes left | folders left | digest |",
        "|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.exit_code} | {each.seconds:.1f} | {each.left} | {each.folders} | "
            f"{'equal' if each.is_equal else 'different'} |"
            for each in found
        ),
        "",
        *(f"- {each.name}: `{each.what}`" for each in found if each.what),
        "- The last line is of a second driver that wanted to resume the run while it was being trained.",
    ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(any(each.left or each.folders or not each.is_equal for each in found))


if __name__ == "__main__":
    sys.exit(main())
