"""Measures how long a user waits: from the command to the header, and to the first row of training.

The yardstick is `python -c "import torch"`, interleaved with the command: nothing can train before torch is there.
CPU seconds stand beside wall-clock seconds: on a machine that is not alone they are the ones to trust. The first round
fills the caches and is left out. Writes docs/results/startup.json; `--profile` lists the slowest imports instead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "startup.json"
COMMAND = ("-m", "quintain", "train", "ppo", "CartPole-v1", "total_timesteps=1k", "events=[]")
FIRST_ROW = "step 1024/"

Moment = dict[str, float]


def measure_import() -> Moment:
    """Times `import torch` in a fresh interpreter."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", "import torch"])
    _, _, usage = os.wait4(process.pid, 0)
    process.returncode = 0
    return {"wall": time.perf_counter() - started, "cpu": usage.ru_utime + usage.ru_stime}


def measure_train() -> tuple[Moment, Moment]:
    """Times a short training run; returns the moments of the header and of the first row."""
    with tempfile.TemporaryDirectory() as runs:
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *COMMAND, "--runs-dir", runs],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert process.stdout is not None
        moments = [
            {"wall": time.perf_counter() - started, "cpu": _cpu_seconds(process.pid)}
            for line in process.stdout
            if line.startswith(("quintain ", FIRST_ROW))
        ]
        process.wait()
    if process.returncode or len(moments) != 2:
        raise SystemExit(f"expected a header and a first row; the command exited with {process.returncode}")
    return moments[0], moments[1]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summarize(rounds: list[dict[str, Moment]]) -> dict[str, object]:
    """Returns medians, and the first row as a multiple of torch's import in the same round."""
    shown = {
        what: {clock: round(median(each[what][clock] for each in rounds), 2) for clock in ("wall", "cpu")}
        for what in ("import torch", "header", "first row")
    }
    multiples = {
        clock: round(median(each["first row"][clock] / each["import torch"][clock] for each in rounds), 2)
        for clock in ("wall", "cpu")
    }
    return {"rounds": len(rounds), "seconds": shown, "first row / import torch": multiples}


def profile(count: int = 25) -> None:
    """Prints the modules whose own code took longest to import in a training run."""
    with tempfile.TemporaryDirectory() as runs:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *COMMAND, "--runs-dir", runs],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    lines = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if "|" in line]
    rows = [(int(own), int(total), name.strip()) for own, total, name in lines if own.strip().isdigit()]
    print(f"{'own ms':>8} {'all ms':>8}  module")
    for own, total, name in sorted(rows, reverse=True)[:count]:
        print(f"{own / 1000:8.1f} {total / 1000:8.1f}  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="list the slowest imports and measure nothing")
    options = parser.parse_args()
    if options.profile:
        profile()
        return
    rounds = []
    for number in range(options.rounds + 1):
        bare = measure_import()
        header, row = measure_train()
        if number > 0:
            rounds.append({"import torch": bare, "header": header, "first row": row})
    report = summarize(rounds)
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
