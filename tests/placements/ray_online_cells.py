"""Scripts of MineStudio's users on Ray: `make test-ray` writes docs/results/ray_online.md.

Two experiments run at the same time on one cluster, which exists before them and which they join by its address: one
whose driver learns, one with two ranks under `TorchTrainer`. Then `fit()` of a trainer of the script's own, with one
rank and with two.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from quintain.placements.ray.cluster import LocalHead
from tests import warm
from tests.placements.test_ray import _descendants
from tests.resume.test_workers import is_alive

SECONDS = 900.0
RESULTS = warm.ROOT / "docs" / "results" / "ray_online.md"


def start(folder: Path, head: LocalHead, address: str, name: str, how: str) -> subprocess.Popen[str]:
    environment = {**warm.ENVIRONMENT, **{key: value for key, value in head.environment.items() if value}}
    command = [sys.executable, "-m", "tests.placements.ray_online_script", address, name, how]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        head = LocalHead(8, prestarts=False, has_ranks=True)
        address = head.await_address()
        below = _descendants(os.getpid()) - {os.getpid()}
        began = time.monotonic()
        both = {
            "driver": start(folder, head, address, "driver", "start"),
            "ranks": start(folder, head, address, "ranks", "ranks"),
        }
        said = {run: process.communicate(timeout=SECONDS)[0] for run, process in both.items()}
        took = time.monotonic() - began
        took_fit = []
        for own, how in (("own", "fit"), ("own2", "fit2")):
            began = time.monotonic()
            both[own] = start(folder, head, address, own, how)
            said[own] = both[own].communicate(timeout=SECONDS)[0]
            took_fit.append(time.monotonic() - began)
        codes = [process.returncode for process in both.values()]
        assert codes == [0, 0, 0, 0], "\n".join(said.values())
        assert all("done in" in text for text in said.values()), said
        hidden = [path.name for path in (folder / "runs").iterdir() if path.name.startswith(".")]
        assert not hidden, hidden
        head.close()
        time.sleep(1.0)
        left, folders = sum(map(is_alive, below)), int(head.directory.exists())
    lines = [
        "# Scripts of MineStudio's users on Ray",
        "",
        "Written by `make test-ray` from `tests/placements/ray_online_script.py`: generators and a trainer of the main",
        "script, `start_rolloutmanager` with the address of an existing cluster, three iterations. Seconds are from",
        "the start of the scripts to their end, on two shared cores.",
        "",
        "| scripts | exit codes | seconds | processes left | folders left |",
        "|---|---|---|---|---|",
        f"| two at once: `start_trainer` with 1 worker, and with 2 | {codes[0]}, {codes[1]} | {took:.0f} | | |",
        f"| `fit()` of a trainer of its own, in a worker of `TorchTrainer` | {codes[2]} | {took_fit[0]:.0f} | | |",
        f"| the same with `num_workers=2` | {codes[3]} | {took_fit[1]:.0f} | {left} | {folders} |",
    ]
    RESULTS.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(bool(left or folders))


if __name__ == "__main__":
    sys.exit(main())
