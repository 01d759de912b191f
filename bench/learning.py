"""Trains quintain and Stable-Baselines3 on the same tasks, steps and settings; writes docs/results/learning_beside.md.

Every run is one line of docs/results/learning_beside.jsonl; a run that is there is not repeated. Scores do not depend
on what else the machine does, so --jobs may be as large as there are cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import report
from environments import interpreter, process_environment
from learning_tasks import TASKS, LearningTask

HERE = Path(__file__).resolve().parent
RECORD = report.RESULTS / "learning_beside.jsonl"
PAGE = report.RESULTS / "learning_beside.md"
PEERS = ("sb3", "quintain")
RESULT = "RESULT "
SIGNIFICANT = 0.05

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="TEXT", help="tasks whose name contains this")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS, help="default: both")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time, of one thread each")
    parser.add_argument("--report", action="store_true", help="train nothing, write the page again")
    options = parser.parse_args()
    if not options.report:
        tasks = [task for task in TASKS.values() if any(text in task.name for text in options.only)]
        pythons = {peer: interpreter(peer) for peer in options.peers}
        done = {(row["task"], row["peer"], row["seed"]) for row in rows_of(RECORD)}
        wanted = [(task, peer, seed) for task in tasks for seed in range(options.seeds) for peer in options.peers]
        with ThreadPoolExecutor(options.jobs) as pool:
            missing = [run for run in wanted if (run[0].name, run[1], run[2]) not in done]
            for row in pool.map(lambda run: train(pythons[run[1]], *run), missing):
                print(f"{row['task']} {row['peer']} seed {row['seed']}: {fmean(row['returns']):.1f}", flush=True)
    PAGE.write_text(markdown(rows_of(RECORD)))
    print(f"wrote {PAGE}")


def train(python: Path, task: LearningTask, peer: str, seed: int) -> Row:
    """Trains once in a process of the peer's own and appends the outcome to the record."""
    command = [str(python), str(HERE / "learners.py"), peer, task.name, str(seed)]
    with tempfile.TemporaryDirectory() as folder:  # where libraries may leave what they like
        done = subprocess.run(
            command, env=process_environment(1), cwd=folder, capture_output=True, text=True, check=False
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        raise SystemExit(f"{peer} on {task.name} failed: {done.stderr.strip().splitlines()[-1]}")
    row = {"task": task.name, "peer": peer, "seed": seed, **json.loads(lines[-1].removeprefix(RESULT))}
    with RECORD.open("a") as file:
        file.write(json.dumps(row) + "\n")
    return row


def rows_of(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def chance_of_being_below(ours: list[float], theirs: list[float]) -> float:
    """Returns how often scores dealt at random to the two sides would leave us at least as far below as we are.

    An exact permutation test: with three seeds each there are 20 deals, so nothing below 0.05 can come out.
    """
    scores, difference = [*ours, *theirs], fmean(ours) - fmean(theirs)
    deals = []
    for hand in combinations(range(len(scores)), len(ours)):
        mine = [scores[index] for index in hand]
        others = [score for index, score in enumerate(scores) if index not in hand]
        deals.append(fmean(mine) - fmean(others))
    return sum(deal <= difference + 1e-9 for deal in deals) / len(deals)


def markdown(rows: list[Row]) -> str:
    """Returns the page."""
    parts = [
        "# Learning beside Stable-Baselines3",
        "",
        "The same task, the same settings under each library's names, equally many environment steps, some seeds. The "
        "policy at the end of training (not the best on the way) plays without exploring, in episodes that begin alike "
        "for both. *Below by chance* is an exact permutation test on the seeds' means: how often the scores, dealt at "
        "random to the two sides, would leave quintain at least as far below as it is; 0.05 is the smallest value that "
        "three seeds can give. CPU seconds are those of training, in one thread. `make bench-learning` repeats it.",
        "",
        "| task | steps | quintain (each seed) | sb3 (each seed) | below by chance | CPU s, quintain | sb3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for task in TASKS.values():
        by_peer = {peer: [row for row in rows if (row["task"], row["peer"]) == (task.name, peer)] for peer in PEERS}
        if not all(by_peer.values()):
            continue
        scores = {peer: [fmean(row["returns"]) for row in found] for peer, found in by_peer.items()}
        chance = chance_of_being_below(scores["quintain"], scores["sb3"])
        verdict = f"**{chance:.2f}: below**" if chance <= SIGNIFICANT else f"{chance:.2f}"
        cpu = {peer: fmean(row["cpu_seconds"] for row in found) for peer, found in by_peer.items()}
        cells = [
            task.title,
            f"{task.total_steps:,}",
            _scores(scores["quintain"]),
            _scores(scores["sb3"]),
            verdict,
            f"{cpu['quintain']:,.0f}",
            f"{cpu['sb3']:,.0f}",
        ]
        parts.append(f"| {' | '.join(cells)} |")
    return "\n".join([*parts, ""])


def _scores(scores: list[float]) -> str:
    spread = f" ± {stdev(scores):,.1f}" if len(scores) > 1 else ""
    return f"{fmean(scores):,.1f}{spread} ({', '.join(f'{score:,.1f}' for score in scores)})"


if __name__ == "__main__":
    main()
