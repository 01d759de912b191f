"""Lanes that do not wait, beside lanes in lockstep; writes docs/results/fragments.md.

Eight environments of 10 ms a step with a heavy tail, each in a worker of its own, and an update that takes about as
long as collecting its batch. Two comparisons, fixed before the first run, in interleaved rounds of one process each:

speed   fragments collected while the learner learns, against lockstep lanes that act and learn in turns. Wanted: 1.6
        times the steps per second, and a learner that is busy at least 80 % of the time.
faults  fragments with an update of one epoch, so that collecting is the limit, with and without environments that
        raise, hang, die and reset slowly. Wanted: the lanes that nothing happens to keep more than 80 % of their speed.

python bench/fragments.py [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
LANES, STEP_SECONDS, TAIL = 8, 0.01, 0.05
FRAGMENTS = {"type": "fragments", "num_steps": 16, "num_fragments": 16, "max_staleness": 4}
KINDS = ("turns", "fragments", "sound", "faults")
FAULTS = ("", "raises", "hangs", "dies", "resets slowly")
NUM_EPOCHS = 12
WANTED = {"speed": 1.6, "busy": 0.8, "faults": 0.8}


class SlowWalk(gymnasium.Env[Any, Any]):
    """A task of 10 ms a step; one step in twenty takes 60. `fault` is how it breaks: see FAULTS."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (64,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self) -> None:
        self.fault = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        if FAULTS[int(self.fault)] == "resets slowly":
            time.sleep(1.0)
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(STEP_SECONDS + (TAIL if self.np_random.random() < 0.05 else 0.0))
        self.age += 1
        how = FAULTS[int(self.fault)] if self.np_random.random() < 0.01 else ""
        if how == "raises":
            raise RuntimeError("the arm fell off")
        if how == "hangs":
            time.sleep(600)
        if how == "dies":
            os._exit(7)
        return self._obs(), float(action == 0), False, self.age >= 100, {}

    def _obs(self) -> Any:
        return self.np_random.standard_normal(64).astype(np.float32)


def measure(kind: str, seconds: float) -> dict[str, Any]:
    """Trains for a while; returns steps per second, the learner's share of the time, and fragments/s by lane."""
    import torch

    from quintain import Trainer
    from quintain.data import fields as f

    torch.set_num_threads(1)
    workers = {"num_workers": LANES, "step_timeout_seconds": 2.0, "max_restarts": 10**6, "max_failures_in_a_row": 1000}
    trainer = Trainer(
        "ppo",
        "bench.fragments:SlowWalk",
        num_lanes=LANES,
        rollout={"type": "block", "num_steps": 32} if kind == "turns" else FRAGMENTS,
        batch_size=64,
        num_epochs=NUM_EPOCHS if kind in ("turns", "fragments") else 1,
        hidden_sizes=[256, 256],
        compiled=False,
        threads=1,
        events=[],
        writers=[],
        placement="local" if kind == "turns" else "threads",
        total_timesteps=10**9,
        env_workers=workers,
    )
    lanes: Counter[int] = Counter()
    learned = 0.0
    update = trainer._stage_update

    def timed_update() -> bool:
        nonlocal learned
        started = time.perf_counter()
        is_done = update()
        learned += time.perf_counter() - started
        block = trainer.learner.taken.rollout
        if f.LANE in block.storage:
            lanes.update(block.array(f.LANE)[0].tolist())
        return is_done

    trainer._stage_update = timed_update  # type: ignore[method-assign]
    if kind == "faults":
        trainer.source.set_env_parameters({"fault": np.array([1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0])})
    trainer.advance()
    lanes.clear()
    started, first, learned = time.perf_counter(), trainer.progress.env_steps, 0.0
    while time.perf_counter() - started < seconds:
        trainer.advance()
    elapsed = time.perf_counter() - started
    found = {
        "kind": kind,
        "steps_per_second": (trainer.progress.env_steps - first) / elapsed,
        "busy": learned / elapsed,
        "fragments_per_second": [lanes[lane] / elapsed for lane in range(LANES)],
        "restarts": trainer.faults.restarts,
    }
    trainer.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--measure", choices=KINDS, help="one measurement, printed as JSON")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.seconds)))
        return
    rows, load = [], os.getloadavg()[0]
    for number in range(options.rounds):
        for kind in KINDS[number % 4 :] + KINDS[: number % 4]:
            command = [sys.executable, __file__, "--measure", kind, "--seconds", str(options.seconds)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=ROOT)
            rows.append({"round": number, **json.loads(done.stdout.splitlines()[-1])})
            print(rows[-1], flush=True)
    about = {"rounds": options.rounds, "seconds": options.seconds, "load": [load, os.getloadavg()[0]], "rows": rows}
    (RESULTS / "fragments.json").write_text(json.dumps(about, indent=1) + "\n")
    (RESULTS / "fragments.md").write_text(page(about))


def page(about: dict[str, Any]) -> str:
    """Returns the page of results."""
    by_kind = {kind: [row for row in about["rows"] if row["kind"] == kind] for kind in KINDS}
    by_round = list(zip(*by_kind.values(), strict=True))
    speed = [ahead["steps_per_second"] / turns["steps_per_second"] for turns, ahead, _, _ in by_round]
    busy = [row["busy"] for row in by_kind["fragments"]]
    whole = slice(4, LANES)
    left = [
        sum(broken["fragments_per_second"][whole]) / sum(sound["fragments_per_second"][whole])
        for _, _, sound, broken in by_round
    ]
    restarts = sum(row["restarts"] for row in by_kind["faults"])
    lines = [
        "# Lanes that do not wait",
        "",
        f"Written by `bench/fragments.py`, which has all settings: {LANES} environments of 10 ms a step, of which one "
        f"in twenty takes 60, each in a worker; {about['rounds']} interleaved rounds of {about['seconds']:g} s, one "
        f"thread for learning. Load of the machine {about['load'][0]:.1f} before and {about['load'][1]:.1f} after.",
        "",
        "| what | wanted | median | all rounds |",
        "|---|---|---|---|",
    ]
    rows = (
        ("steps/s of fragments ahead over lockstep in turns", WANTED["speed"], speed),
        ("share of the time in which the learner learns", WANTED["busy"], busy),
        ("speed of the four sound lanes beside four that break, over that without faults", WANTED["faults"], left),
    )
    for what, wanted, found in rows:
        each = ", ".join(f"{value:.2f}" for value in found)
        lines.append(f"| {what} | {wanted} | {statistics.median(found):.2f} | {each} |")
    turns = statistics.median(row["steps_per_second"] for row in by_kind["turns"])
    ahead = statistics.median(row["steps_per_second"] for row in by_kind["fragments"])
    lines += [
        "",
        f"Steps/s in the median: {turns:.0f} in turns, {ahead:.0f} ahead. Of the broken lanes one raises, one hangs "
        f"for 2 s until it is given up, one dies (each at 1 % of its steps) and one takes 1 s to reset; made again "
        f"{restarts} times. Fragments ahead learn from data that is up to {FRAGMENTS['max_staleness']} versions old, "
        "lockstep in turns from data of the newest version.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
