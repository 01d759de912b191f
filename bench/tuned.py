"""Runs the settings that ship in quintain/tuned/, writes their scores into the files, and docs/results/tuned.md.

Every run is one line of docs/results/tuned.jsonl, which is only ever appended to. A run is repeated only where no line
has the same file, seed and settings, so it can be stopped and started again. A file whose settings changed, or that has
not run with all its seeds, gets no scores. Needs the extras box2d, minigrid and mujoco.

python bench/tuned.py [TEXT ...] [--report]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import commits
from environments import ROOT, process_environment

sys.path.insert(0, str(ROOT))

from quintain.settings.tuned import FOLDER, Tuned, all_tuned

RECORD = ROOT / "docs" / "results" / "tuned.jsonl"
PAGE = ROOT / "docs" / "results" / "tuned.md"
RESULT = "RESULT "
CODE = ("quintain", "constraints.txt", ":!quintain/tuned")
"""Paths whose newest commit is that of a run."""
SEEDS = (0, 1, 2)
NUM_EPISODES = 30
MARK = "measured:"
ONE_SEED = {"ppo-ALE_Breakout-v5"}
"""Files that are too slow for several seeds; they say so."""

Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", default=[""], metavar="TEXT", help="files whose name contains this")
    parser.add_argument("--report", action="store_true", help="train nothing, write scores and page again")
    options = parser.parse_args()
    for tuned in all_tuned():
        if not options.report and any(text in tuned.name for text in options.only or [""]):
            for seed in seeds_of(tuned):
                if not rows_of(tuned, seed):
                    run(tuned, seed)
        write_scores(tuned)
    PAGE.write_text(markdown())
    print(f"wrote {PAGE}")


def stem(tuned: Tuned) -> str:
    return Path(tuned.name).stem


def seeds_of(tuned: Tuned) -> tuple[int, ...]:
    return SEEDS[:1] if stem(tuned) in ONE_SEED else SEEDS


def digest(tuned: Tuned) -> str:
    """Names the settings of a file."""
    told = tuned.file.model_dump(mode="json", exclude={"measured"})
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def rows_of(tuned: Tuned, seed: int) -> list[Row]:
    rows = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.is_file() else []
    wanted = (stem(tuned), digest(tuned), seed)
    return [row for row in rows if (row["file"], row["settings"], row["seed"]) == wanted]


def run(tuned: Tuned, seed: int) -> None:
    """Trains once in a process of its own and appends the outcome to the record."""
    about = {"file": stem(tuned), "settings": digest(tuned), "seed": seed, "commit": commits.measured(*CODE)}
    command = [sys.executable, str(Path(__file__).with_name("tuned_run.py"))]
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*command, tuned.file.algorithm, tuned.file.env, str(seed), str(NUM_EPISODES)],
            env=process_environment(1),
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(RESULT)]
    if not lines:
        sys.exit(f"{tuned.name} seed {seed}: {done.stderr.strip().splitlines()[-1:]}")
    row = {**about, **json.loads(lines[-1].removeprefix(RESULT))}
    with RECORD.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(f"{time.strftime('%H:%M')} {tuned.name} seed {seed}: {fmean(row['returns']):.1f}", flush=True)


def rounded(score: float) -> float:
    """Rounds a score to four digits."""
    return float(f"{score:.4g}")


def write_scores(tuned: Tuned) -> None:
    """Writes the block of scores at the end of a file, or removes it where runs are missing."""
    found = [rows_of(tuned, seed) for seed in seeds_of(tuned)]
    path = FOLDER / Path(tuned.name).name
    settings = path.read_text().partition(MARK)[0].rstrip("\n") + "\n"
    if not all(found):
        path.write_text(settings)
        return
    rows = [each[0] for each in found]
    lines = [
        MARK,
        f"  seeds: {[row['seed'] for row in rows]}",
        f"  scores: {[rounded(fmean(row['returns'])) for row in rows]}",
        f"  num_episodes: {NUM_EPISODES}",
        f"  cpu_minutes: {max(0.1, round(fmean(row['cpu_seconds'] for row in rows) / 60, 1))}",
        f"  commit: '{', '.join(dict.fromkeys(row['commit'] for row in rows))}'",
    ]
    if stem(tuned) in ONE_SEED:
        lines.append("  note: one seed, for about ten minutes; not trained to the end")
    path.write_text(settings + "\n".join(lines) + "\n")


def markdown() -> str:
    """Returns the page."""
    lines = [
        "# Tuned settings that ship",
        "",
        "`quintain train ALGO ENV --tuned` and `Trainer(algo, env, tuned=True)` use them; a setting that you give "
        "yourself goes before them. A score is the mean return of the final policy over "
        f"{NUM_EPISODES} episodes without exploring. The files are in `quintain/tuned/`. `python bench/tuned.py` runs "
        "what is missing and writes scores and page.",
        "",
        "| algorithm | environment | steps | mean | score of each seed (0, 1, 2) | CPU minutes a seed | settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for tuned in all_tuned():
        file, seen = tuned.file, tuned.file.measured
        if seen is None:
            continue
        settings = {key: value for key, value in file.settings.items() if key != "env_steps"}
        told = ", ".join(f"`{key}={json.dumps(value)}`" for key, value in settings.items()) or "the defaults"
        scores = ", ".join(f"{score:,}" for score in seen.scores)
        note = f" ({seen.note})" if seen.note else ""
        cells = [file.algorithm, file.env, str(file.settings["env_steps"]), f"{rounded(fmean(seen.scores)):,}"]
        lines.append(f"| {' | '.join([*cells, scores + note, str(seen.cpu_minutes), told])} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
