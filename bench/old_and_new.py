"""Measures an older commit of quintain beside this checkout, without peers; writes docs/results/old_and_new.md.

python bench/old_and_new.py COMMIT

Both run in the same interpreter, each with its own code and its own benchmark scripts, one after the other in every
round, in an order that changes with the round. What is compared is what a second of a core's time brings, which others
on the machine disturb least.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import commits
import report
from environments import ROOT, interpreter, process_environment
from intervals import bootstrap_median
from run import RESULT, run_limited

RECORD, PAGE = report.RESULTS / "old_and_new.jsonl", report.RESULTS / "old_and_new.md"
OLD, NEW = "old", "new"
SLOWEST, LARGEST = 0.97, 1.03
"""The interval of the ratio of speeds may not lie wholly below the first, nor memory above the second."""
CODE = ("quintain", "constraints.txt", "bench/peers", "bench/measure.py", "bench/agents_measure.py", "bench/meter.py")

Row = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A row of one of the benchmarks: a script of `bench/`, and what it is called with before and after the seconds."""

    name: str
    script: str
    before: tuple[str, ...]
    after: tuple[str, ...] = ()


def _lanes(workload: str) -> Work:
    return Work(workload, "measure.py", ("quintain", "gymnasium", workload, "{round}"), ("1",))


def _agents(workload: str, num_agents: int) -> Work:
    name = f"{workload}, {num_agents} agents"
    return Work(name, "agents_measure.py", ("quintain_agents", workload, str(num_agents)))


WORKS = (
    _lanes("ppo_cartpole_8"),
    _lanes("ppo_cartpole_64"),
    _lanes("ppo_memory_cartpole_8"),
    _lanes("sac_halfcheetah"),
    _agents("ppo", 256),
    _agents("ppo_memory", 256),
    _agents("ppo_image", 16),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the older commit")
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="rows whose name contains this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run")
    options = parser.parse_args()
    python, rows = interpreter("quintain"), []
    works = [work for work in WORKS if any(text in work.name for text in options.only)]
    with checkout(options.commit) as older:
        places = {OLD: older, NEW: ROOT}
        for number in range(options.rounds):
            for work in works:
                for side in (OLD, NEW) if number % 2 else (NEW, OLD):
                    row = measure(python, work, places[side], number, options.seconds)
                    rows.append({"work": work.name, "side": side, "round": number, **row})
                    print(
                        f"{work.name} #{number} {side}: {row['steps_per_cpu_second']:,.0f} steps a CPU second",
                        flush=True,
                    )
    about = {"old": commits.git("rev-parse", "--short", options.commit), "new": commits.measured(*CODE)}
    RECORD.write_text("".join(json.dumps({**about, **row}) + "\n" for row in rows))
    PAGE.write_text(as_page(rows, about))
    print(PAGE.read_text())


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Lends a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "older"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(place), commit], cwd=ROOT, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=ROOT, check=True)


def measure(python: Path, work: Work, place: Path, number: int, seconds: float) -> Row:
    words = [word.format(round=number) for word in (*work.before, str(seconds), *work.after)]
    environment = {**process_environment(1), "PYTHONPATH": str(place)}
    command = [str(python), str(place / "bench" / work.script), *words]
    out, err, code = run_limited(command, environment, 300.0 + 20.0 * seconds)
    lines = [line for line in out.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise SystemExit(f"{work.name} failed with code {code} in {place.name}:\n{err[-2000:]}")
    row: Row = json.loads(lines[-1].removeprefix(RESULT))
    return row


def ratios(rows: list[Row], work: str, key: str) -> list[float]:
    """Returns the new side's value over the old one's, of every round."""
    found = {(row["side"], row["round"]): float(row[key]) for row in rows if row["work"] == work}
    return [found[NEW, number] / found[OLD, number] for side, number in sorted(found) if side == NEW]


def as_page(rows: list[Row], about: dict[str, str]) -> str:
    num_rounds = 1 + max(row["round"] for row in rows)
    foreign = median(row["foreign_cores"] for row in rows)
    lines = [
        "# An older commit beside this one",
        "",
        f"`make bench-old-and-new OLD={about['old']}`: commit {about['new']} beside it, {num_rounds} rounds in turns, "
        f"one thread, other programs used {foreign:.1f} cores meanwhile. Speed is environment steps in a second "
        "of a core's time, new over old: the median of the rounds with its 95% bootstrap interval. Memory is the "
        "median of the peaks, new over old.",
        "",
        f"| work | speed | interval | not wholly below {SLOWEST} | memory | at most {LARGEST} |",
        "|---|---|---|---|---|---|",
    ]
    for work in dict.fromkeys(row["work"] for row in rows):
        speed = ratios(rows, work, "steps_per_cpu_second")
        low, high = bootstrap_median(speed)
        memory = median(ratios(rows, work, "peak_megabytes"))
        verdicts = ["met" if high >= SLOWEST else "**not met**", "met" if memory <= LARGEST else "**not met**"]
        cells = [work, f"{median(speed):.3f}", f"{low:.3f} to {high:.3f}", verdicts[0], f"{memory:.3f}", verdicts[1]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
