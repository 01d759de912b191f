"""Measures what a second rank brings: PPO with a large and a small network, on one rank, on two, and with two threads.

The ways take turns, so that a slow minute of the machine meets all alike, and each is compared with one rank in its own
round. Each is a process of its own and waits until the machine is quiet. Writes docs/results/ranks.json and ranks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

RESULTS = Path(__file__).parents[1] / "docs" / "results"
WORKLOADS: dict[str, tuple[str, tuple[str, ...]]] = {
    "large": (
        "2x512 networks, minibatches of 2048 rows",
        ("hidden_sizes=[512, 512]", "num_lanes=64", "batch_size=2048", "num_epochs=4"),
    ),
    "small": (
        "2x64 networks, minibatches of 256 rows",
        ("hidden_sizes=[64, 64]", "num_lanes=8", "batch_size=256", "num_epochs=4"),
    ),
}
WAYS = {
    "one rank": ("num_ranks=1", "threads=1"),
    "two ranks": ("num_ranks=2", "threads=1"),
    "one rank, two threads": ("num_ranks=1", "threads=2"),
}
WARM_UP_ROWS = 2


def measure(workload: str, way: str, cycles: int) -> dict[str, float]:
    """Trains for some cycles; returns steps/s in all and seconds of learning in a cycle, both as medians."""
    _, settings = WORKLOADS[workload]
    lanes = next(int(text.partition("=")[2]) for text in settings if text.startswith("num_lanes"))
    budget = f"total_timesteps={lanes * 128 * (cycles + WARM_UP_ROWS)}"
    words = ["train", "ppo", "CartPole-v1", *settings, *WAYS[way], budget, "checkpoint.every_seconds=null", "events=[]"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "quintain", *words, "--runs-dir", folder, "--run-id", "a", "--quiet"]
        before, started = busy_seconds(), time.monotonic()
        subprocess.run(command, check=True)
        busy = (busy_seconds() - before) / (time.monotonic() - started)
        rows = [json.loads(line) for line in (Path(folder) / "a" / "metrics.jsonl").read_text().splitlines()]
    seconds = [row["time/total_seconds"] for row in rows]
    spans = [after - before for before, after in pairwise(seconds)][WARM_UP_ROWS - 1 :]
    learning = [span * row["time/learn_fraction"] for span, row in zip(spans, rows[WARM_UP_ROWS:], strict=True)]
    return {
        "steps_per_second": lanes * 128 / median(spans),
        "learn_seconds": median(learning),
        "busy_cores": busy,
    }


def compare(rounds: int, cycles: dict[str, int]) -> dict[str, Any]:
    found: dict[str, dict[str, list[dict[str, float]]]] = {w: {way: [] for way in WAYS} for w in WORKLOADS}
    for number in range(rounds):
        for workload in WORKLOADS:
            # Nobody is always the first.
            for way in [list(WAYS)[(number + place) % len(WAYS)] for place in range(len(WAYS))]:
                wait_until_quiet()
                found[workload][way].append(measure(workload, way, cycles[workload]))
                print(workload, way, found[workload][way][-1], flush=True)
    return {
        "cores": os.cpu_count(),
        "rounds": rounds,
        "workloads": {workload: summary(ways) for workload, ways in found.items()},
    }


def summary(ways: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Returns medians, and how much faster than one rank each was in its own round."""
    alone = ways["one rank"]
    report = {}
    for way, results in ways.items():
        whole = [mine["steps_per_second"] / one["steps_per_second"] for mine, one in zip(results, alone, strict=True)]
        learning = [one["learn_seconds"] / mine["learn_seconds"] for mine, one in zip(results, alone, strict=True)]
        report[way] = {
            "steps_per_second": round(median(result["steps_per_second"] for result in results)),
            "learn_milliseconds": round(1000 * median(result["learn_seconds"] for result in results), 1),
            "faster": [round(value, 2) for value in sorted(whole)],
            "learns_faster": [round(value, 2) for value in sorted(learning)],
            "busy_cores": round(median(result["busy_cores"] for result in results), 2),
        }
    return report


def page(report: dict[str, Any]) -> str:
    parts = [
        "# What a second rank brings",
        "",
        f"PPO on CartPole with rollouts of 128 steps and 4 epochs, on {report['cores']} cores, by `bench/ranks.py`: "
        f"{report['rounds']} rounds in which the ways take turns. A ratio compares two runs of the same round: median "
        f"(lowest to highest). `batch_size` is the total, so each of two ranks has half of a minibatch.",
    ]
    for workload, ways in report["workloads"].items():
        parts += [
            "",
            f"## {WORKLOADS[workload][0][0].upper()}{WORKLOADS[workload][0][1:]}",
            "",
            "| | steps/s | learning, ms a cycle | steps/s against one rank | learning against one rank |",
            "|---|---|---|---|---|",
            *(
                f"| {way} | {row['steps_per_second']:,} | {row['learn_milliseconds']:,} "
                f"| {ratio(row['faster'])} | {ratio(row['learns_faster'])} |"
                for way, row in ways.items()
            ),
        ]
    parts += [
        "",
        "Ranks talk once in each step of the optimizer, so a step must be worth the talk: large networks gain, small "
        "ones lose. Ranks also share the lanes, which threads do not.",
        "",
    ]
    return "\n".join(parts)


def ratio(values: list[float]) -> str:
    return "" if set(values) == {1.0} else f"{median(values):.2f} x ({values[0]:.2f} to {values[-1]:.2f})"


def busy_seconds() -> float:
    """Returns what all processes together used since boot."""
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _wait, *interrupts = (int(x) for x in stat.readline().split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(most_cores: float = 0.15, patience_seconds: float = 120.0) -> None:
    """Returns when others leave the machine alone, or when they do not for long."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        before = busy_seconds()
        time.sleep(2.0)
        if (busy_seconds() - before) / 2.0 < most_cores:
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cycles", type=int, default=6, help="of the large network; the small one gets twenty times")
    options = parser.parse_args()
    report = compare(options.rounds, {"large": options.cycles, "small": 20 * options.cycles})
    (RESULTS / "ranks.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "ranks.md").write_text(page(report))
