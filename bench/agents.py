"""Measures agents that come and go beside ML-Agents' own trainer and writes docs/results/bench_agents.md.

Both run the same trainer file in an environment that computes nothing, on one thread, each in a process of its own, one
after the other in every round, so that a slow minute of the machine meets both alike. ML-Agents gets an environment of
packages of its own (`bench/environments.py`); we run in the interpreter that runs this. What is compared is what a
second of a core's time brings, which others on the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

import commits
from environments import interpreter, process_environment
from report import RESULTS
from run import RESULT, commit, machine, run_limited

HERE = Path(__file__).resolve().parent
OURS, THEIRS = "quintain_agents", "mlagents"
WORKLOADS = {
    "assemble": "act, step and assemble trajectories; ML-Agents' are then thrown away, ours are valued and kept",
    "collect": "the same until a buffer of 12,000 steps could be learned from",
    "ppo": "the same, and three epochs of PPO in minibatches of 64 on each buffer",
    "ppo_memory": "the same as ppo with an LSTM of 64 in front of the layers, in sequences of 64 steps",
    "poca": "the same with POCA, for groups of four",
}
WANTED = {"collect": 10.0, "ppo": 8.0, "ppo_memory": 1.0}
"""How many times as fast as ML-Agents we want to be."""
DEFAULT = ("assemble", "collect", "ppo", "ppo_memory")

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=DEFAULT, metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--agents", type=int, nargs="+", default=[256], help="how many there are at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run; at least one update is measured")
    parser.add_argument("--results-dir", type=Path, default=RESULTS, help="where the page and its rows go")
    options = parser.parse_args()
    pythons = {OURS: Path(sys.executable), THEIRS: interpreter("mlagents")}
    rows: list[Row] = []
    record = options.results_dir / "bench_agents.jsonl"
    begun = earlier_rounds(record, commit())
    for number in range(begun, begun + options.rounds):
        for workload, num_agents in [(work, count) for work in options.workloads for count in options.agents]:
            # Nobody is always the first.
            for peer in (OURS, THEIRS) if number % 2 else (THEIRS, OURS):
                row = measure(pythons[peer], peer, workload, num_agents, options.seconds)
                rows.append({**row, "round": number})
                print(_told(rows[-1]), flush=True)
    page = as_page(newest(add(rows, record)))
    (options.results_dir / "bench_agents.md").write_text(page)
    print(page)


def measure(python: Path, peer: str, workload: str, num_agents: int, seconds: float) -> Row:
    """Runs one library once, in a process that cannot outlive its time, and returns its row."""
    about = {"workload": workload, "agents": num_agents, "peer": peer, "commit": commit(), "machine": machine()}
    words = [str(HERE / "agents_measure.py"), peer, workload, str(num_agents), str(seconds)]
    out, err, code = run_limited([str(python), *words], process_environment(1), 300.0 + 20.0 * seconds)
    lines = [line for line in out.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise SystemExit(f"{peer} failed at {workload} with code {code}:\n{err[-2000:]}")
    return {**about, **json.loads(lines[-1].removeprefix(RESULT))}


def add(rows: list[Row], record: Path) -> list[Row]:
    """Adds rows to a file, which is only ever appended to, and returns all that it has."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return read(record)


def read(record: Path) -> list[Row]:
    return [json.loads(line) for line in record.read_text().splitlines()] if record.is_file() else []


def earlier_rounds(record: Path, measured: str) -> int:
    """Returns how many rounds of a commit there are: those of further runs are counted from there."""
    return max((row["round"] + 1 for row in read(record) if row["commit"] == measured), default=0)


def newest(rows: list[Row]) -> list[Row]:
    """Returns the rows of the commit that was measured last; rounds of several commits are not put together."""
    return [row for row in rows if row["commit"] == rows[-1]["commit"]]


def ratios(rows: list[Row], key: str = "steps_per_cpu_second") -> list[float]:
    """Returns how many times as fast we were in each round, from the rows of one workload and number of agents."""
    rates = {(row["peer"], row["round"]): row[key] for row in rows}
    return [rates[OURS, number] / rates[THEIRS, number] for number in sorted({row["round"] for row in rows})]


def as_page(rows: list[Row]) -> str:
    versions = {row["peer"]: row["versions"] for row in rows}
    named = {peer: ", ".join(f"{name} {text}" for name, text in known.items()) for peer, known in versions.items()}
    foreign = [row["foreign_cores"] for row in rows]
    lines = [
        "# Agents beside ML-Agents",
        "",
        f"`make bench-agents`: {len({row['round'] for row in rows})} rounds of commit {rows[0]['commit']}, in turns, "
        f"one thread each, on {os.cpu_count()} cores of which other programs used {median(foreign):.1f} meanwhile (up "
        f"to {max(foreign):.1f}). Agents see 8 numbers, choose 2 and live for 200 steps; their environment computes "
        "nothing. Both libraries run the same trainer file, that of ML-Agents' balancing balls (two layers of 128, "
        "normalized observations, a buffer of 12,000). Agent-steps in a second of a core's time, medians; ratios are "
        "medians of the rounds', with the lowest and the highest. The last column has the same ratio by the clock."
        + commits.note_on_lost([rows[0]["commit"]]),
        "",
        f"{named[OURS]}; beside it {named[THEIRS]}. ML-Agents' trainer runs in one process with its environment, "
        "without Unity, a port or worker processes; what those cost is in neither number. It is the last "
        "release that can be installed beside Python 3.11, and newer ones were not measured.",
        "",
        "| what | agents | quintain | ML-Agents | ratio | lowest to highest | wanted | by the clock |",
        "|---|---|---|---|---|---|---|---|",
    ]
    cases = list(dict.fromkeys((row["workload"], row["agents"]) for row in rows))
    for workload, num_agents in cases:
        of_case = [row for row in rows if (row["workload"], row["agents"]) == (workload, num_agents)]
        rate = {
            peer: median(row["steps_per_cpu_second"] for row in of_case if row["peer"] == peer)
            for peer in (OURS, THEIRS)
        }
        found, by_clock = ratios(of_case), median(ratios(of_case, "steps_per_second"))
        lines.append(
            f"| {workload} | {num_agents} | {rate[OURS]:,.0f} | {rate[THEIRS]:,.0f} | {median(found):.1f} "
            f"| {min(found):.1f} to {max(found):.1f} | {WANTED.get(workload, '')} | {by_clock:.1f} |"
        )
    explained = [f"- *{name}*: {WORKLOADS[name]}." for name in dict.fromkeys(name for name, _ in cases)]
    return "\n".join([*lines, "", *explained, ""])


def _told(row: Row) -> str:
    rate = f"{row['steps_per_cpu_second']:,.0f} steps in a second of a core's time"
    return f"{row['workload']} #{row['round']} {row['peer']}: {rate}, others used {row['foreign_cores']:.2f} cores"


if __name__ == "__main__":
    main()
