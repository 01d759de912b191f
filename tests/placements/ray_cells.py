"""What ends a run on Ray from outside, and what is left of it: `make test-ray` writes docs/results/ray.md.

Each cell is a run of its own with a local cluster. The driver is killed, told to stop, or interrupted, where it is held
between two updates; then nothing of the cluster may be left, and the resumed run must end with the digest of a run in
`placement: local` that was not disturbed.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests import warm
from tests.hold import Hold, wait_for
from tests.placements.test_ray import _descendants
from tests.resume.outcome import digest_of
from tests.resume.test_workers import is_alive

ROWS = 6
SETTINGS = (
    "ppo", "CartPole-v1", "num_lanes=4", "num_steps=32", "batch_size=64", "num_epochs=2", "num_collectors=2",
    "max_staleness=1", "total_timesteps=1536", "seed=5", "checkpoint.every_updates=2", "events=[]",
)  # fmt: skip
RAY = ("placement=ray", "placement.num_actors=2")
CELLS = {"kill -9 of the driver": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "Ctrl-C": signal.SIGINT}
GONE_SECONDS = 20.0
RESULTS = warm.ROOT / "docs" / "results" / "ray.md"


@dataclass(frozen=True)
class Outcome:
    """One row of the table."""

    name: str
    exit_code: int
    seconds: float
    """From the signal to the end of the driver."""
    gone: float
    """Seconds after the driver until nothing of the cluster was left, or `GONE_SECONDS`."""
    left: int
    """Processes of the cluster that lived then."""
    folders: int
    is_equal: bool


def train(folder: Path, *words: str, hold: Hold | None = None) -> subprocess.Popen[bytes]:
    launcher = ("-m", "quintain") if hold is None else hold.launcher
    return subprocess.Popen(
        [sys.executable, *launcher, *words, "--quiet"], cwd=folder, env=warm.ENVIRONMENT, start_new_session=True
    )


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def folders_of(pids: Iterable[int]) -> set[Path]:
    """Returns the folders of clusters that the commands of these processes name; other clusters may come and go."""
    names = {name for pid in pids for name in re.findall(r"quintain-ray-\w+", command_of(pid))}
    return {Path(place, name) for place in (tempfile.gettempdir(), "/tmp") for name in names}


def await_gone(pids: Iterable[int], folders: Iterable[Path]) -> float:
    """Waits until nothing of a cluster is left, but not for ever; returns how long that took."""
    began = time.monotonic()
    while any(map(is_alive, pids)) or any(folder.exists() for folder in folders):
        if time.monotonic() - began > GONE_SECONDS:
            return GONE_SECONDS
        time.sleep(0.05)
    return time.monotonic() - began


def disturbed(folder: Path, name: str, number: signal.Signals, reference: str) -> Outcome:
    run_id = number.name.lower()
    hold = Hold(folder, ROWS)
    process = train(folder, "train", *SETTINGS, *RAY, "--run-id", run_id, hold=hold)
    wait_for(lambda: hold.is_reached(ROWS), process)
    below = _descendants(process.pid) - {process.pid}
    own = folders_of(below)
    assert len(below) > 5, "there is no cluster"
    assert any(each.exists() for each in own), "its processes name no folder"
    began = time.monotonic()
    process.send_signal(number)
    hold.let_go()
    exit_code = process.wait(timeout=100)
    seconds = time.monotonic() - began
    gone = await_gone(below, own)
    left, folders = sum(map(is_alive, below)), sum(each.exists() for each in own)
    resumed = train(folder, "resume", run_id).wait(timeout=200)
    assert resumed == 0
    is_equal = digest_of(folder / "runs" / run_id) == reference
    return Outcome(name, exit_code, seconds, gone, left, folders, is_equal)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert train(folder, "train", *SETTINGS, "--run-id", "whole").wait(timeout=200) == 0
        reference = digest_of(folder / "runs" / "whole")
        found = [disturbed(folder, cell, number, reference) for cell, number in CELLS.items()]
    lines = [
        "# Runs on Ray that are ended from outside",
        "",
        "Written by `make test-ray`: a driver with a local cluster and two rollout actors, PPO on CartPole,",
        "`max_staleness: 1`. The driver is held between two updates when the signal comes. Times are from the signal",
        "to the end of the driver, and from there until nothing of the cluster was left, on a machine that was shared.",
        f"What was left after {GONE_SECONDS:g} s is counted. The run is resumed and compared with an undisturbed one",
        "in `placement: local`.",
        "",
        "| event | exit code | seconds | gone after | processes left | folders left | resumed: digest |",
        "|---|---|---|---|---|---|---|",
        *(
            f"| {each.name} | {each.exit_code} | {each.seconds:.1f} | {each.gone:.1f} | {each.left} | {each.folders} | "
            f"{'equal' if each.is_equal else 'different'} |"
            for each in found
        ),
    ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(any(each.left or each.folders or not each.is_equal for each in found))


if __name__ == "__main__":
    sys.exit(main())
