"""Lanes that do not wait, beside lanes in lockstep; writes docs/results/fragments.md.

Eight environments of 10 ms a step with a heavy tail, each in a worker of its own, and an update that takes as long as
collecting its batch, which a short run in turns measures at the start of each round, as others use the machine too. By
`--learning device` the update waits so long, as it would for an accelerator, and needs no core; by `computes` it has as
many epochs as take so long, and acting and learning share the cores that the machine gives. Comparisons, fixed before
the first run of their kind, in interleaved rounds of one process each:

speed   fragments collected while the learner learns, against lockstep lanes that act and learn in turns. Wanted with
        `device`: 1.6 times the steps per second, and a learner that is busy at least 80 % of the time. With `computes`
        the gain is recorded beside the shares of a core that the learner got, and all other processes together.
faults  fragments with an update of one epoch, so that collecting is the limit, with and without environments that
        raise, hang, die and reset slowly. Wanted: the lanes that nothing happens to keep more than 80 % of their speed;
        each fault is told with its lane, and only the lanes that break have any; no observation that was learned from
        is of a broken step; no process and no shared memory is left.
groups  the same two in two collectors, of which one has the lanes that break and the other the sound ones. Wanted: the
        sound ones keep more than 80 % of their speed.

With `computes` only `speed` is measured: nothing else depends on how learning takes its time.

python bench/fragments.py [--rounds N] [--seconds S] [--learning device|computes]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
LANES, STEP_SECONDS, TAIL = 8, 0.01, 0.05
FRAGMENTS = {"type": "fragments", "num_steps": 16, "num_fragments": 16, "max_staleness": 4}
PLACEMENT = "processes"
"""Where fragments are collected; in a thread, acting and many small updates would share the interpreter's lock."""
KINDS = ("turns", "fragments", "sound", "faults", "sound groups", "faults in a group")
FAULTS = ("", "raises", "hangs", "dies", "resets slowly")
NUM_EPOCHS = 12
"""Epochs of the run that sets the number of epochs of its round."""
CALIBRATION_SECONDS = 8.0
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
        """Returns noise, whose last number says whether it is whole."""
        obs = self.np_random.standard_normal(64).astype(np.float32)
        obs[-1] = np.sin(obs[0])
        return obs


def measure(kind: str, seconds: float, num_epochs: int, wait_seconds: float) -> dict[str, Any]:
    """Trains for a while; returns steps per second, the learner's share of the time, and fragments/s by lane."""
    import torch

    from bench.soak import family
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
        num_epochs=num_epochs if kind in ("turns", "fragments") else 1,
        hidden_sizes=[256, 256],
        compiled=False,
        threads=1,
        events=[],
        writers=[],
        placement="local" if kind == "turns" else PLACEMENT,
        num_collectors=2 if "group" in kind else 1,
        total_timesteps=10**9,
        env_workers=workers,
    )
    lanes: Counter[int] = Counter()
    broken: Counter[int] = Counter()
    learned, num_wrong = 0.0, 0
    update = trainer._stage_update

    def timed_update() -> bool:
        nonlocal learned, num_wrong
        started = time.perf_counter()
        is_done = update()
        if kind in ("turns", "fragments"):
            time.sleep(wait_seconds)
        learned += time.perf_counter() - started
        block = trainer.learner.taken.rollout
        if f.LANE in block.storage:
            lanes.update(block.array(f.LANE)[0].tolist())
        obs = block.array(f.OBS)[:-1]
        num_wrong += not np.allclose(obs[..., -1], np.sin(obs[..., 0]), atol=1e-5)
        return is_done

    trainer._stage_update = timed_update  # type: ignore[method-assign]
    told: list[str] = []
    trainer.faults.listen(lambda fault, line: told.append(line), lambda reason: None)
    if "faults" in kind:
        trainer.source.set_env_parameters({"fault": np.array([1.0, 2.0, 3.0, 4.0, 0.0, 0.0, 0.0, 0.0])})
    trainer.advance()
    lanes.clear()
    started, first, learned = time.perf_counter(), trainer.progress.env_steps, 0.0
    first_update, cpu_seconds, of_others = trainer.progress.updates, time.process_time(), cpu_seconds_of(family()[1:])
    while time.perf_counter() - started < seconds:
        trainer.advance()
    elapsed = time.perf_counter() - started
    found = {
        "kind": kind,
        "steps_per_second": (trainer.progress.env_steps - first) / elapsed,
        "busy": learned / elapsed,
        "fragments_per_second": [lanes[lane] / elapsed for lane in range(LANES)],
        "epochs": num_epochs,
        "wait_seconds": wait_seconds,
        "update_seconds": elapsed / max(1, trainer.progress.updates - first_update),
        "cores_of_the_learner": (time.process_time() - cpu_seconds) / elapsed,
        "cores_of_others": (cpu_seconds_of(family()[1:]) - of_others) / elapsed,
        "restarts": trainer.faults.restarts,
        "num_wrong": num_wrong,
    }
    pids, found["memory"] = family()[1:], sorted(shared_memory(family()))
    trainer.close()
    time.sleep(1.0)
    for line in told:
        broken[int(re.findall(r"on lane (\d+)", line)[0])] += 1
    found["faults_by_lane"] = [broken[lane] for lane in range(LANES)]
    found["processes_left"] = sum(pid in family() for pid in pids)
    return found


def cpu_seconds_of(pids: Sequence[int]) -> float:
    """Returns the time of all cores that these processes had, as far as they live."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return total / os.sysconf("SC_CLK_TCK")


def shared_memory(pids: Sequence[int] | None = None) -> set[int]:
    """Returns the numbers of the framework's shared memory that these processes, or any, have mapped."""
    found = set()
    for pid in pids or [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {int(line.split()[4]) for line in lines if "memfd:quintain" in line}
    return found


def calibrated(learning: str) -> tuple[int, float]:
    """Returns the epochs, and the time to wait, by which an update takes as long as collecting in turns."""
    num_epochs = 1 if learning == "device" else NUM_EPOCHS
    found = measured("turns", CALIBRATION_SECONDS, num_epochs, 0.0)
    busy, seconds = found["busy"], found["update_seconds"]
    if learning == "device":
        return 1, max(0.0, (1.0 - 2.0 * busy) * seconds)
    return max(1, round(NUM_EPOCHS * (1.0 - busy) / busy)), 0.0


def measured(kind: str, seconds: float, num_epochs: int, wait_seconds: float) -> dict[str, Any]:
    """Measures in a process of its own."""
    options = {"measure": kind, "seconds": seconds, "epochs": num_epochs, "wait": wait_seconds}
    command = [sys.executable, __file__, *(f"--{name}={value}" for name, value in options.items())]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    names = set(os.listdir("/dev/shm"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(f"{kind} failed:\n{done.stdout}{done.stderr}")
    found = dict(json.loads(done.stdout.splitlines()[-1]))
    own = set(found.pop("memory"))
    assert own or kind == "turns", "collectors in processes have shared memory"
    found["memory_left"] = len(own & shared_memory()) + len(set(os.listdir("/dev/shm")) - names)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--measure", choices=KINDS, help="one measurement, printed as JSON")
    parser.add_argument("--epochs", type=int, default=NUM_EPOCHS)
    parser.add_argument("--wait", type=float, default=0.0)
    parser.add_argument("--learning", choices=("device", "computes"), default="device")
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder of the results")
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.seconds, options.epochs, options.wait)))
        return
    rows, loads = [], []
    kinds = KINDS if options.learning == "device" else KINDS[:2]
    for number in range(options.rounds):
        lasts = calibrated(options.learning)
        for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
            rows.append({"round": number, **measured(kind, options.seconds, *lasts)})
            loads.append(os.getloadavg()[0])
            print(rows[-1], flush=True)
    kept = options.into / "fragments.json"
    runs = json.loads(kept.read_text()) if kept.exists() else []
    about = {"acts": PLACEMENT, "learning": options.learning, "rounds": options.rounds, "seconds": options.seconds}
    runs.append({**about, "loads": loads, "rows": rows})
    kept.write_text(json.dumps(runs, indent=1) + "\n")
    (options.into / "fragments.md").write_text(page(runs))


def page(runs: list[dict[str, Any]]) -> str:
    """Returns the page of results: every run, the newest first."""
    lines = [
        "# Lanes that do not wait",
        "",
        f"Written by `make bench-fragments` (`bench/fragments.py`, which has all settings): {LANES} environments of 10 "
        "ms a step, of which one in twenty takes 60, each in a worker, and one thread for learning. Ratios compare two "
        "measurements of one round. Fragments ahead learn from data that is up to "
        f"{FRAGMENTS['max_staleness']} versions old, lockstep in turns from data of the newest version. Of the lanes "
        "that break one raises, one hangs for 2 s until it is given up, one dies (each at 1 % of its steps) and one "
        "takes 1 s to reset. Every run is here, the newest first.",
    ]
    for number, about in reversed(list(enumerate(runs, 1))):
        how = "waits for a device" if about["learning"] == "device" else "computes"
        lines += ["", f"## Run {number}: learning {how}, acting in {about['acts']}", "", *section(about)]
        lines += ["", about["note"]] if "note" in about else []
    return "\n".join(lines) + "\n"


def section(about: dict[str, Any]) -> list[str]:
    """Returns the lines of one run."""
    by_kind = {kind: [row for row in about["rows"] if row["kind"] == kind] for kind in KINDS}
    turns_and_ahead = zip(by_kind["turns"], by_kind["fragments"], strict=True)
    speed = [ahead["steps_per_second"] / turns["steps_per_second"] for turns, ahead in turns_and_ahead]
    busy = [row["busy"] for row in by_kind["fragments"]]
    with_faults = by_kind["faults"] + by_kind["faults in a group"]
    by_lane = [sum(each) for each in zip(*(row["faults_by_lane"] for row in with_faults), strict=True)]
    restarts = sum(row["restarts"] for row in with_faults)
    has_others = "cores_of_others" in by_kind["fragments"][0]
    lines = [
        f"{about['rounds']} interleaved rounds of {about['seconds']:g} s. An update has "
        f"{', '.join(str(row['epochs']) for row in by_kind['turns'])} epochs and waits for "
        f"{', '.join(format(row['wait_seconds'], '.2f') for row in by_kind['turns'])} s. Load of the machine, which "
        f"has {os.cpu_count()} cores and other users: {min(about['loads']):.1f} to {max(about['loads']):.1f}. "
        f"Share of a core that the learner had, ahead: {_cores(by_kind['fragments'], 'the_learner')}"
        + (f"; collectors and environments: {_cores(by_kind['fragments'], 'others')}." if has_others else "."),
        "",
        "| what | wanted | median | all rounds |",
        "|---|---|---|---|",
    ]
    rows = (
        (
            "steps/s of fragments ahead over lockstep in turns",
            WANTED["speed"] if about["learning"] == "device" else "-",
            speed,
        ),
        (
            "share of the time in which the learner learns",
            WANTED["busy"] if about["learning"] == "device" else "-",
            busy,
        ),
        (
            "speed of the four sound lanes beside four that break, over that without faults",
            WANTED["faults"],
            _left(by_kind["sound"], by_kind["faults"]),
        ),
        (
            "the same, where those that break are a group of their own",
            WANTED["faults"],
            _left(by_kind["sound groups"], by_kind["faults in a group"]),
        ),
    )
    for what, wanted, found in rows:
        if not found:
            continue
        each = ", ".join(f"{value:.2f}" for value in found)
        lines.append(f"| {what} | {wanted} | {statistics.median(found):.2f} | {each} |")
    turns = statistics.median(row["steps_per_second"] for row in by_kind["turns"])
    ahead = statistics.median(row["steps_per_second"] for row in by_kind["fragments"])
    lines += [
        "",
        f"Steps/s in the median: {turns:.0f} in turns, {ahead:.0f} ahead. Environments were made again {restarts} "
        f"times, by lane {by_lane}. Batches with a broken observation: "
        f"{sum(row['num_wrong'] for row in about['rows'])}; processes left: "
        f"{sum(row['processes_left'] for row in about['rows'])}; shared memory left: {_memory_left(about['rows'])}.",
    ]
    return lines


def _memory_left(rows: list[dict[str, Any]]) -> int | str:
    return sum(row["memory_left"] for row in rows) if "memory_left" in rows[0] else "not measured"


def _left(sound: list[dict[str, Any]], broken: list[dict[str, Any]]) -> list[float]:
    """Returns the speed of the lanes that nothing happens to, over that without faults, by round."""
    of_lanes = [[sum(row["fragments_per_second"][4:]) for row in rows] for rows in (broken, sound)]
    return [beside / alone for beside, alone in zip(*of_lanes, strict=True)]


def _cores(rows: list[dict[str, Any]], whose: str) -> str:
    known = (row.get(f"cores_of_{whose}") for row in rows)
    return ", ".join("not measured" if cores is None else f"{cores:.2f}" for cores in known)


if __name__ == "__main__":
    main()
