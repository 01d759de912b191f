"""Expert iteration with text models of our own: three seeds and a control of the same seeds, each a run of the example.

    python bench/learning_text.py            runs that are missing, one after the other
    python bench/learning_text.py --check    compares the recorded runs with the criteria

The criteria were fixed before the first run. Every run is recorded; a criterion is never changed with a result.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples/text/expert_iteration.yaml"
RECORD = ROOT / "docs/results/learning_text.jsonl"
CONTROL = "experiment.loop.pure_text_ei.rollout_selection_method=all"
RUNS = [(kind, seed) for kind in ("selected", "control") for seed in (1, 2, 3)]
FIRST = (0.35, 0.65)
"""Accuracy on held-out programs before any fine-tune job: about one half."""
LEAST_LAST = 0.75
"""Accuracy on held-out programs at the end, of every seed."""
MOST_LAST_OF_CONTROL = 0.65
"""Accuracy at the end if conversations are not selected."""
MOST_MINUTES = 30.0
PAGE = """# Expert iteration with small text models

A verifier and a prover, models of 0.11 M parameters on this machine (`tiny`), talk about small programs under the nip
protocol: `examples/text/expert_iteration.yaml`, with 200 conversations in each of 4 iterations. Accuracy is the part of
right decisions of the verifier on 76 held-out programs, two conversations about each. The first number is the base
model, which decides at random; each later one follows one more fine-tune of both agents. The control fine-tunes on
conversations that are not selected by reward.

Criteria, fixed before the first run: {low} to {high} at first; at least {least} at the end, the control at most {most};
at most {minutes:.0f} minutes. Written by `make learning-text`; every run is recorded. How the grammar was chosen, and
what did not work: [the log](../log.md).
"""


def run(kind: str, seed: int) -> dict[str, Any]:
    """Runs the example once and returns its record."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "quintain", "train", str(EXAMPLE), f"seed={seed}", "--runs-dir", folder]
        line += ["--run-id", "r", "--quiet", *([CONTROL] if kind == "control" else [])]
        started = time.monotonic()
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        minutes = (time.monotonic() - started) / 60
        record: dict[str, Any] = {"kind": kind, "seed": seed, "minutes": round(minutes, 2), "exit": done.returncode}
        if done.returncode != 0:
            return {**record, "error": done.stderr.strip()[-400:].partition(" (/")[0]}
        rows = [json.loads(row) for row in (Path(folder) / "r/metrics.jsonl").read_text().splitlines()]
    for split in ("train", "test"):
        record[f"{split}_accuracy"] = [round(row[f"{split}/mean_accuracy"], 4) for row in rows]
    return record


def ended(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the runs that ended; others are recorded, have no accuracy, and are made again."""
    return [each for each in records if each["exit"] == 0]


def is_met(record: dict[str, Any]) -> bool:
    """Whether a run meets the criteria."""
    if record["exit"] != 0 or record["minutes"] > MOST_MINUTES:
        return False
    first, last = record["test_accuracy"][0], record["test_accuracy"][-1]
    is_learned = last <= MOST_LAST_OF_CONTROL if record["kind"] == "control" else last >= LEAST_LAST
    return FIRST[0] <= first <= FIRST[1] and is_learned


def page(records: list[dict[str, Any]]) -> str:
    """Returns the readable page of the recorded runs."""
    lines = [
        PAGE.format(low=FIRST[0], high=FIRST[1], least=LEAST_LAST, most=MOST_LAST_OF_CONTROL, minutes=MOST_MINUTES),
        "| run | seed | held-out accuracy by iteration | in training | minutes | met |",
        "|---|---|---|---|---|---|",
    ]
    for each in records:
        shown = [
            " → ".join(f"{value:.2f}" for value in each.get(f"{split}_accuracy", [])) for split in ("test", "train")
        ]
        is_right = "yes" if is_met(each) else "**no**" if each["exit"] == 0 else "ended with an error, made again"
        lines.append(
            f"| {each['kind']} | {each['seed']} | {shown[0]} | {shown[1]} | {each['minutes']:.1f} | {is_right} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    only_checks = parser.parse_args().check
    records = [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []
    for kind, seed in RUNS:
        if not only_checks and not any((each["kind"], each["seed"]) == (kind, seed) for each in ended(records)):
            records.append(run(kind, seed))
            with RECORD.open("a") as file:
                file.write(json.dumps(records[-1]) + "\n")
    RECORD.with_suffix(".md").write_text(page(records))
    for each in records:
        print("met   " if is_met(each) else "MISSED", json.dumps(each))
    if len(ended(records)) < len(RUNS) or not all(map(is_met, ended(records))):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
