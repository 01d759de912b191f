"""Summarises measurements as ratios within each repetition, and writes them for people and for programs."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import workloads

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
Runs = list[dict[str, Any]]


def write(runs: Runs, absent: dict[str, str], *, ours: str) -> Path:
    """Writes bench.json and bench.md and returns the latter's path."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"cpu": _cpu_name(), "cores": os.cpu_count(), "python": platform.python_version()}
    record = {"date": datetime.now(UTC).date().isoformat(), "machine": machine, "absent": absent, "runs": runs}
    (RESULTS / "bench.json").write_text(json.dumps(record, indent=1) + "\n")
    page = RESULTS / "bench.md"
    page.write_text(markdown(record, ours))
    return page


def markdown(record: dict[str, Any], ours: str) -> str:
    """Returns the page."""
    machine = record["machine"]
    parts = [
        "# Speed beside other libraries",
        "",
        f"Measured {record['date']} on {machine['cpu']} ({machine['cores']} cores), Python {machine['python']}, with "
        "`make bench`. Every library does the same work in one process with one thread; environment steps per second "
        "include learning. Runs are interleaved, and a ratio compares two runs of the same repetition: trust ratios "
        "more than rates. *Per CPU second* leaves out the time in which other programs had the core.",
    ]
    for name in sorted({run["workload"] for run in record["runs"]}):
        parts += ["", *_table(name, [run for run in record["runs"] if run["workload"] == name], ours)]
    if record["absent"]:
        parts += ["", "Left out because they could not be installed:", ""]
        parts += [f"- {peer}: {reason}" for peer, reason in record["absent"].items()]
    return "\n".join([*parts, ""])


def ratios(runs: Runs, peer: str, ours: str, rate: str) -> list[float]:
    """Returns how many times faster we were than the peer in each repetition that has both."""
    by_repetition = {(run["peer"], run["repetition"]): run[rate] for run in runs}
    repetitions = sorted({run["repetition"] for run in runs})
    pairs = [(by_repetition.get((ours, i)), by_repetition.get((peer, i))) for i in repetitions]
    return [mine / theirs for mine, theirs in pairs if mine is not None and theirs is not None]


def _table(name: str, runs: Runs, ours: str) -> list[str]:
    work = workloads.find(name)
    lines = [
        f"## {work.title}",
        "",
        f"{work.num_steps} steps, {work.num_epochs} epochs of {work.num_minibatches} minibatches "
        f"({work.minibatch_size} rows), separate actor and critic of {'x'.join(map(str, work.hidden_sizes))} tanh, "
        f"entropy {work.entropy_coef}, learning rate {work.learning_rate:g}, gradient norm at most "
        f"{work.max_grad_norm}.",
        "",
        f"| library | steps/s, median (range) | {ours} is faster by, median (range) | per CPU second | cores used | "
        "cores others used | runs |",
        "|---|---|---|---|---|---|---|",
    ]
    peers = {run["peer"] for run in runs}
    fastest_first = sorted(peers, key=lambda peer: -median(_column(runs, peer, "steps_per_second")))
    lines += [_row(runs, peer, ours) for peer in fastest_first]
    lines += ["", "Versions:", ""]
    for peer in sorted(peers):
        found = next(run["versions"] for run in runs if run["peer"] == peer)
        lines.append(f"- {peer}: " + ", ".join(f"{package} {number}" for package, number in found.items()))
    return lines


def _row(runs: Runs, peer: str, ours: str) -> str:
    rates = _column(runs, peer, "steps_per_second")
    cells = [peer, f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"]
    if peer == ours:
        cells += ["", ""]
    else:
        wall, cpu = (ratios(runs, peer, ours, rate) for rate in ("steps_per_second", "steps_per_cpu_second"))
        cells += [f"{median(wall):.2f} x ({min(wall):.2f} to {max(wall):.2f})", f"{median(cpu):.2f} x"]
    cells += [f"{median(_column(runs, peer, column)):.2f}" for column in ("own_cores", "foreign_cores")]
    return "| " + " | ".join([*cells, str(len(rates))]) + " |"


def _column(runs: Runs, peer: str, name: str) -> list[float]:
    return [run[name] for run in runs if run["peer"] == peer]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
