"""Measures quintain and its peers side by side and writes docs/results/bench.md, with a chart.

Repetitions are the outer loop, so that a slow minute of the machine meets every peer alike. Every run is one line of
docs/results/bench.jsonl with the commit of the code that was measured; a run of the same commit is not repeated, so
that the benchmark can be stopped and started again. A run beside which others used the machine is measured again at the
end. --quoted measures the rows that the README quotes, and nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import commits
import peers
import processes
import quotes
import report
from contestants import Contestant, contestants_of, module_of
from environments import CannotInstall, interpreter, process_environment
from results import QUIET_CORES, Results
from workloads import WORKLOADS, Workload

HERE = Path(__file__).resolve().parent
RESULT = "RESULT "
MEASURED_CODE = ("quintain", "constraints.txt", "bench/peers", "bench/measure.py", "bench/meter.py")
"""Paths whose newest commit is that of a row."""


def main() -> None:
    options = _options()
    names, works = _chosen(options.peers, options.only, is_quoted=options.quoted)
    results = Results(options.out)
    if not options.report:
        measured, pythons = commit(), _prepare(names, works)
        for work, contestant, repetition in _schedule(works, list(pythons), results, options.reps, measured):
            seconds = options.seconds * work.effort
            processes.wait_until_quiet(QUIET_CORES, options.patience)
            row = {
                "commit": measured,
                "machine": machine(),
                **measure(pythons[contestant.peer], work, contestant, repetition, seconds),
            }
            results.add(row)
            _show(row, contestant)
    print(f"wrote {report.write(results, options.results_dir)}")
    if options.results_dir == report.RESULTS:
        quotes.write(results)
        print(f"wrote {quotes.README}")


def _chosen(wanted: Sequence[str], only: Sequence[str], *, is_quoted: bool) -> tuple[list[str], list[Workload]]:
    """Returns the peers and the workloads that were asked for; quintain is always among the peers."""
    names = [name for name in peers.NAMES if name in {peers.OURS, *wanted}]
    works = [work for work in WORKLOADS.values() if any(text in work.name for text in only)]
    if is_quoted:
        names = [name for name in names if name in {peers.OURS, *(quote.against for quote in quotes.QUOTES)}]
        works = [work for work in works if work.name in {quote.workload for quote in quotes.QUOTES}]
    return names, works


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="workloads whose name contains this")
    parser.add_argument("--peers", nargs="+", default=peers.NAMES, choices=peers.NAMES, help="default: all")
    parser.add_argument("--reps", type=int, default=5, help="runs of each; twice as many where it is a close call")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run; twice as long for a close call")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine")
    parser.add_argument("--out", type=Path, default=report.RESULTS / "bench.jsonl", help="file of all runs")
    parser.add_argument("--results-dir", type=Path, default=report.RESULTS, help="where the page and the chart go")
    parser.add_argument("--quoted", action="store_true", help="only what the README quotes, and those it is beside")
    parser.add_argument("--report", action="store_true", help="measure nothing, write the page again")
    return parser.parse_args()


def _prepare(names: list[str], works: list[Workload]) -> dict[str, Path]:
    """Returns the interpreter of every peer that is needed and can run here."""
    pythons: dict[str, Path] = {}
    for name in names:
        if not any(contestants_of(work, [name]) for work in works):
            continue
        try:
            pythons[name] = interpreter(module_of(name).KIT)
        except CannotInstall as reason:
            print(f"{name} is left out: {reason}", flush=True)
    return pythons


def _schedule(
    works: list[Workload], names: list[str], results: Results, reps: int, commit: str
) -> Iterator[tuple[Workload, Contestant, int]]:
    """Says what to measure next: first what is missing, then what was disturbed, at most as often again."""
    for repetition in range(2 * max((work.repetitions(reps) for work in works), default=0)):
        for work in works:
            wanted = work.repetitions(reps)
            able = [each for each in contestants_of(work, names) if not results.has_failed(work.name, each, commit)]
            is_extra = repetition >= wanted
            if repetition >= 2 * wanted or (
                is_extra and all(results.num_quiet(work.name, each, commit) >= wanted for each in able)
            ):
                continue
            for contestant in able:
                # Asked again: a contestant may have failed for good within this repetition.
                is_done = results.has(work.name, contestant, commit, repetition)
                if not is_done and not results.has_failed(work.name, contestant, commit):
                    yield work, contestant, repetition


def measure(python: Path, work: Workload, contestant: Contestant, repetition: int, seconds: float) -> dict[str, object]:
    """Runs one contestant once, in a process that cannot outlive its time, and returns its row."""
    about: dict[str, object] = {
        "workload": work.name,
        "peer": contestant.peer,
        "entry": contestant.entry,
        "threads": contestant.threads,
        "repetition": repetition,
    }
    words = [contestant.peer, contestant.entry, work.name, repetition, seconds, contestant.threads]
    command = [str(python), str(HERE / "measure.py"), *map(str, words)]
    out, err, code = run_limited(command, process_environment(contestant.threads), _time_limit(work, seconds))
    lines = [line for line in out.splitlines() if line.startswith(RESULT)]
    if lines:
        return {**about, **json.loads(lines[-1].removeprefix(RESULT))}
    return {**about, "error": (err.strip().splitlines() or [f"exited with code {code}"])[-1][:300]}


def machine() -> str:
    """Names the processor and the interpreter; the page may be written on another machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    return f"{name} ({os.cpu_count()} cores), Python {platform.python_version()}"


def run_limited(command: list[str], environment: dict[str, str], limit_seconds: float) -> tuple[str, str, int]:
    """Runs a command in a folder of its own, where libraries may leave what they like, for at most so long."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = child.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            out, err = "", f"no result after {limit_seconds:.0f} s"
        finally:
            processes.end(processes.tree(child.pid)[1:])
            _end_session(child)
    return out, err, child.returncode


def _time_limit(work: Workload, seconds: float) -> float:
    # Imports, compilation and the warm-up come on top; a goal or a long run is given in steps, not in seconds.
    return 300.0 + 20.0 * seconds if work.meter == "rate" else 3600.0


def _end_session(child: subprocess.Popen[str]) -> None:
    """Ends the measured process and all it started; they are a session of their own."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    child.communicate()


def commit() -> str:
    """Returns which version of this project is measured."""
    return commits.measured(*MEASURED_CODE)


def _show(row: dict[str, object], contestant: Contestant) -> None:
    head = f"{row['workload']} #{row['repetition']} {contestant.label}"
    if "error" in row:
        print(f"{head}: failed: {row['error']}", flush=True)
        return
    mark = "" if float(str(row["foreign_cores"])) <= QUIET_CORES else " (does not count)"
    print(
        f"{head}: {row['steps_per_second']:,.0f} steps/s, others used {row['foreign_cores']:.2f} cores{mark}",
        flush=True,
    )


if __name__ == "__main__":
    main()
