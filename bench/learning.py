"""Trains quintain and Stable-Baselines3 on the same tasks, steps and seeds; writes docs/results/learning_beside.md.

With --defaults both sides have their own default settings, and the page is docs/results/defaults.md. Every run is one
line of the .jsonl beside the page, which is only ever appended to. A run is repeated only
where no line has the same task, side, seed and `numbers`: a name of the code that its score depends on, which is the
task's for quintain and the version for Stable-Baselines3. So it can be stopped and started again. Scores do not depend
on other load of the machine, so --jobs may be as large as there are cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import commits
import report
from environments import KITS, interpreter, process_environment
from intervals import (
    LEVEL,
    SIGNIFICANT,
    bootstrap_interval,
    chance_of_difference,
    interquartile_mean,
    smallest_chance,
)
from learning_tasks import DEFAULTS, TASKS, LearningTask

HERE = Path(__file__).resolve().parent
OURS, THEIRS = PEERS = ("quintain", "sb3")
RESULT = "RESULT "
CODE = ("quintain", "constraints.txt", "bench/learners.py", "bench/peers/quintain.py")
"""Paths whose newest commit is that of a run."""

Row = dict[str, Any]


class CannotTrain(Exception):
    """A run ended without a result; the message says why."""


@dataclass(frozen=True)
class Comparison:
    """Tasks with a record and a page of their own."""

    name: str
    title: str
    about: str
    """Says what is compared, in the first sentences of the page."""
    tasks: dict[str, LearningTask]
    target: str
    """The Makefile's word for it."""

    @property
    def record(self) -> Path:
        return report.RESULTS / f"{self.name}.jsonl"

    @property
    def page(self) -> Path:
        return report.RESULTS / f"{self.name}.md"


SAME_SETTINGS = Comparison(
    "learning_beside",
    "Learning beside Stable-Baselines3",
    "The same task, the same settings under each library's names, equally many environment steps and the same "
    "seeds. Their number, in `bench/learning_tasks.py`, was chosen when the first seeds of some tasks had been run "
    "already; runs with the current numbers count.",
    TASKS,
    "bench-learning",
)
OWN_DEFAULTS = Comparison(
    "defaults",
    "PPO by its defaults, beside Stable-Baselines3 by its own",
    "The same task, equally many environment steps and the same seeds; nothing else is set on either side. Tasks, "
    "steps, seeds and episodes stand in `bench/learning_tasks.py`, committed before the first run. The defaults "
    "of quintain were chosen on other seeds.",
    DEFAULTS,
    "bench-defaults",
)


@dataclass(frozen=True)
class Run:
    """One line of the record that is wanted."""

    task: LearningTask
    peer: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int, str]:
        return (self.task.name, self.peer, self.seed, numbers_of(self.task, self.peer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="tasks whose name contains this")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS, help="default: both")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, of one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing, write the page again")
    parser.add_argument("--defaults", action="store_true", help="both sides with their own default settings")
    options = parser.parse_args()
    failures: list[str] = []
    comparison = OWN_DEFAULTS if options.defaults else SAME_SETTINGS
    if not options.report:
        tasks = [task for task in comparison.tasks.values() if any(text in task.name for text in options.only)]
        missing = missing_runs(rows_of(comparison.record), tasks, options.peers)
        pythons = {peer: interpreter(peer) for peer in {run.peer for run in missing}}
        print(f"{len(missing)} runs are missing", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            attempts = pool.map(lambda run: attempt(pythons[run.peer], run, comparison.record), missing)
            failures = [line for line in attempts if line]
    comparison.page.write_text(markdown(rows_of(comparison.record), comparison))
    print(f"wrote {comparison.page}")
    sys.exit(1 if failures else 0)


def numbers_of(task: LearningTask, peer: str) -> str:
    """Returns the name of the code that a score depends on."""
    return task.numbers if peer == OURS else KITS[peer].requirements[0]


def missing_runs(rows: list[Row], tasks: list[LearningTask], peers: list[str]) -> list[Run]:
    """Returns the runs that the tasks ask for and the record does not have, task by task and seed by seed."""
    done = {(row["task"], row["peer"], row["seed"], row["numbers"]) for row in rows}
    wanted = [Run(task, peer, seed) for task in tasks for seed in range(task.num_seeds) for peer in peers]
    return [run for run in wanted if run.key not in done]


def attempt(python: Path, run: Run, record: Path) -> str:
    """Trains once, says how it went, and returns the reason where it failed; the other runs go on."""
    head = f"{run.task.name} {run.peer} seed {run.seed}"
    try:
        row = train(python, run, record)
    except CannotTrain as reason:
        print(f"{head}: failed: {reason}", file=sys.stderr, flush=True)
        return f"{head}: {reason}"
    print(f"{head}: {fmean(row['returns']):.1f}", flush=True)
    return ""


def train(python: Path, run: Run, record: Path) -> Row:
    """Trains once in a process of the peer's own and appends the outcome to the record."""
    command = [str(python), str(HERE / "learners.py"), run.peer, run.task.name, str(run.seed)]
    about = {"task": run.task.name, "peer": run.peer, "seed": run.seed}
    about |= {"numbers": numbers_of(run.task, run.peer), "commit": commits.measured(*CODE)}
    with tempfile.TemporaryDirectory() as folder:  # where libraries may leave what they like
        done = subprocess.run(
            command, env=process_environment(1), cwd=folder, capture_output=True, text=True, check=False
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise CannotTrain((done.stderr.strip().splitlines() or [f"exited with code {done.returncode}"])[-1])
    row = {**about, **json.loads(lines[-1].removeprefix(RESULT))}
    with record.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def counted(rows: list[Row], task: LearningTask, peer: str) -> list[Row]:
    """Returns the rows that the comparison is made of: the chosen seeds of the current numbers, in their order."""
    wanted = {Run(task, peer, seed).key: seed for seed in range(task.num_seeds)}
    found = [row for row in rows if (row["task"], row["peer"], row["seed"], row["numbers"]) in wanted]
    return sorted(found, key=lambda row: int(row["seed"]))


def scores_of(rows: list[Row]) -> list[float]:
    return [fmean(row["returns"]) for row in rows]


def markdown(rows: list[Row], comparison: Comparison = SAME_SETTINGS) -> str:
    """Returns the page."""
    tasks = comparison.tasks
    parts = [
        f"# {comparison.title}",
        "",
        f"{comparison.about} The policy at the end of "
        "training (not the best on the way) plays without exploring, in episodes that begin alike for both; a seed's "
        f"score is the mean of its returns. The table has the interquartile mean over seeds with its {LEVEL:.0%} "
        "bootstrap interval. *p* is a two-sided exact permutation test of the difference between the interquartile "
        "means: how often scores that are dealt at random to the two sides differ at least as much. Above "
        f"{SIGNIFICANT} the two are *not shown to differ*, which does not say that they are equal. "
        f"{_on_few_seeds(tasks)}No correction is made for {len(tasks)} tasks being compared. CPU seconds are those of "
        "training, in one thread. A commit is that of this project, which starts both sides. "
        f"`make {comparison.target}` runs what is missing and writes this page."
        + commits.note_on_lost(row["commit"] for row in rows),
        "",
        "| task | steps | seeds | quintain | sb3 | p | | CPU s, quintain | sb3 |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_line(task, rows) for task in tasks.values()),
        "",
        "## Every seed",
        "",
        "| task | side | commit | score of each seed |",
        "|---|---|---|---|",
        *(
            line
            for task in tasks.values()
            for peer in PEERS
            if (line := _seeds(task.title, peer, counted(rows, task, peer)))
        ),
    ]
    return "\n".join([*parts, *_earlier(rows, tasks), ""])


def _line(task: LearningTask, rows: list[Row]) -> str:
    mine, other = (counted(rows, task, peer) for peer in PEERS)
    cells = [task.title, f"{task.total_steps:,}", str(task.num_seeds), _summary(mine, task), _summary(other, task)]
    if len(mine) == len(other) == task.num_seeds:
        chance = chance_of_difference(scores_of(mine), scores_of(other))
        is_below = interquartile_mean(scores_of(mine)) < interquartile_mean(scores_of(other))
        verdict = "**below**" if is_below else "above"
        if _has_few_seeds(task):
            verdict = f"{task.num_seeds} seeds can show no difference"
        elif chance > SIGNIFICANT:
            verdict = "not shown to differ"
        cells += [f"{chance:.2f}", verdict]
    else:
        cells += ["", "not compared: runs are missing"]
    cells += [f"{fmean(row['cpu_seconds'] for row in found):,.0f}" if found else "" for found in (mine, other)]
    return f"| {' | '.join(cells)} |"


def _has_few_seeds(task: LearningTask) -> bool:
    """Whether no scores at all could show that the sides differ."""
    return smallest_chance(task.num_seeds) > SIGNIFICANT


def _on_few_seeds(tasks: dict[str, LearningTask]) -> str:
    few = [task for task in tasks.values() if _has_few_seeds(task)]
    if not few:
        return ""
    lowest = smallest_chance(max(task.num_seeds for task in few))
    titles = ", ".join(task.title for task in few)
    return f"The seeds of {titles} are too few to show a difference at all: *p* is at least {lowest:.2f} there. "


def _summary(rows: list[Row], task: LearningTask) -> str:
    if len(rows) < task.num_seeds:
        return f"{len(rows)} of {task.num_seeds} seeds were run"
    scores = scores_of(rows)
    low, high = bootstrap_interval(scores)
    return f"{interquartile_mean(scores):,.1f} ({low:,.1f} to {high:,.1f})"


def _seeds(title: str, peer: str, rows: list[Row]) -> str:
    if not rows:
        return ""
    where = ", ".join(dict.fromkeys(row["commit"] for row in rows))
    return f"| {title} | {peer} | {where} | {', '.join(f'{score:,.1f}' for score in scores_of(rows))} |"


def _earlier(rows: list[Row], tasks: dict[str, LearningTask]) -> list[str]:
    """Returns the rows of other numbers than the current ones, which no comparison above is made of."""
    by_set: dict[tuple[str, str, str], list[Row]] = {}
    current = [row for task in tasks.values() for peer in PEERS for row in counted(rows, task, peer)]
    for row in rows:
        if row not in current:
            by_set.setdefault((row["task"], row["peer"], row["numbers"]), []).append(row)
    lines = [
        f"| {tasks[task].title if task in tasks else task} | {peer} | {numbers} | "
        f"{', '.join(dict.fromkeys(row['commit'] for row in found))} | {_each(found)} |"
        for (task, peer, numbers), found in by_set.items()
    ]
    head = [
        "",
        "## Earlier versions",
        "",
        "Runs of code whose numbers are no longer those of this checkout. They are kept, and not pooled with the runs "
        "above. The commit is the one that was run; of runs from before it was written down, the one that recorded "
        "them.",
        "",
        "| task | side | numbers | commit | score of each seed |",
        "|---|---|---|---|---|",
    ]
    return [*head, *lines] if lines else []


def _each(rows: list[Row]) -> str:
    ordered = sorted(rows, key=lambda row: int(row["seed"]))
    return ", ".join(f"{score:,.1f}" for score in scores_of(ordered))


if __name__ == "__main__":
    main()
