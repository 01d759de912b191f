"""An hour of lanes that do not wait and break all the time; writes docs/results/soak.md.

256 lanes in 8 groups, which 4 processes host; 32 workers of 8 lanes each. An environment sleeps 40 to 120 ms a step, so
that the soak needs few cores. In one step of 67 it raises, dies, hangs until it is given up, or ends its episode
and takes 2 s to reset. Wanted, fixed before the first run:

faults      at least one a second, over the whole time; each is counted with its lane
accounting  in every row, steps collected = learned + waiting + open + discarded + dropped
steps       no observation in any batch is of a step that broke, or is not the one that its lane saw
memory      of all processes together (PSS): the median of the last sixth of the time is at most 5 % above that of the
            second sixth
end         no process and no file in /dev/shm is left

python bench/soak.py [--minutes M]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
SAMPLE_SECONDS = 10.0
LANES, GROUPS, PROCESSES, WORKERS = 256, 8, 4, 32
FAULTS = ("raises",) * 6 + ("dies", "hangs", "resets slowly", "resets slowly")
ROLLOUT = {
    "type": "fragments", "num_steps": 16, "num_fragments": 128, "max_reuse": 2, "max_staleness": 6,
}  # fmt: skip
WANTED_MEMORY = 1.05


class Patient(gymnasium.Env[Any, Any]):
    """A walk whose observations say whether they are whole; it sleeps, and breaks."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if getattr(self, "is_slow", False):
            time.sleep(2.0)
        self.is_slow, self.age, self.place = False, 0, float(self.np_random.normal())
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.np_random.uniform(0.04, 0.12))
        how = FAULTS[self.np_random.integers(len(FAULTS))] if self.np_random.random() < 0.015 else ""
        # What a broken step would show.
        before, self.place = self.place, float("1e30")
        if how == "raises":
            raise RuntimeError("the arm fell off")
        if how == "dies":
            os._exit(7)
        if how == "hangs":
            time.sleep(600)
        self.is_slow = how == "resets slowly"
        self.age, self.place = self.age + 1, before + float(action) - 1.0
        return self._obs(), -abs(self.place), abs(self.place) > 20.0, self.is_slow or self.age >= 200, {}

    def _obs(self) -> Any:
        return np.array([self.place, np.sin(self.place), self.age, np.cos(self.age)], np.float32)


def family() -> list[int]:
    """Returns this process and all that come from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def megabytes_of(pids: list[int]) -> float:
    """Returns the memory of processes; pages that several share count once."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def soak(seconds: float) -> dict[str, Any]:
    """Trains for so long; returns counts, samples of memory, and all that was wrong."""
    import torch

    from quintain import Trainer
    from quintain.data import fields as f
    from quintain.services.events import After

    torch.set_num_threads(1)
    shm_before = set(os.listdir("/dev/shm"))
    rows: dict[int, dict[str, float]] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: rows.setdefault(step, {}).update({name: value}))
    trainer = Trainer(
        "ppo",
        "bench.soak:Patient",
        num_lanes=LANES,
        num_collectors=GROUPS,
        placement={"type": "processes", "num_processes": PROCESSES},
        rollout=ROLLOUT,
        env_workers={
            "num_workers": WORKERS,
            "step_timeout_seconds": 3.0,
            "max_restarts": 10**9,
            "max_failures_in_a_row": 10**6,
        },
        batch_size=512,
        num_epochs=1,
        threads=1,
        total_timesteps=10**12,
        events=[],
        writer=writer,
        **{"report.every_updates": 1},
    )
    kinds: Counter[str] = Counter()
    lanes: Counter[int] = Counter()
    took = trainer.faults.adopt

    def adopt(news: Any) -> None:
        for fault, line in news.told:
            kinds[fault.code] += 1
            first, last = re.findall(r"lanes? (\d+)(?:-(\d+))?", line)[0]
            lanes.update(range(int(first), int(last or first) + 1))
        took(news)

    trainer.faults.adopt = adopt  # type: ignore[method-assign]
    wrong: list[str] = []
    samples: list[dict[str, float]] = []
    pids: set[int] = set()
    started, num_rows, last = time.perf_counter(), 0, {}

    def look(_: Any) -> None:
        """Checks the batch of this update and the rows of those before, and takes a sample now and then."""
        nonlocal num_rows, last
        while rows:
            step = min(rows)
            last = {"step": step, **rows.pop(step)}
            num_rows += 1
            counts = [last[f"fragments/{name}"] for name in ("waiting", "open", "discarded", "dropped")]
            if last["fragments/collected"] != step + sum(counts):
                wrong.append(f"row {num_rows}: {last}")
            if last["rollout/staleness"] > ROLLOUT["max_staleness"] or last["rollout/reuse"] > ROLLOUT["max_reuse"]:
                wrong.append(f"row {num_rows}: {last}")
        obs = trainer.learner.taken.rollout.array(f.OBS)
        seen = np.stack((np.sin(obs[..., 0]), np.cos(obs[..., 2])), -1)
        if not np.allclose(obs[..., [1, 3]], seen, atol=1e-4) or np.abs(obs).max() > 1e6:
            wrong.append(f"row {num_rows}: an observation that is not whole")
        elapsed = time.perf_counter() - started
        if last and (not samples or elapsed - samples[-1]["seconds"] >= SAMPLE_SECONDS):
            found = family()
            pids.update(found)
            samples.append(
                {
                    "seconds": elapsed,
                    "megabytes": megabytes_of(found),
                    "learner_megabytes": megabytes_of(found[:1]),
                    "processes": len(found),
                    "faults": trainer.faults.restarts,
                    "descriptors": len(os.listdir("/proc/self/fd")),
                    "steps": last["fragments/collected"],
                    "load": os.getloadavg()[0],
                }
            )
            print(samples[-1], flush=True)
        if elapsed > seconds:
            trainer.stop("the time is over")

    trainer.events.add(After("publish"), look)
    trainer.train()
    elapsed = time.perf_counter() - started
    pids.update(family())
    trainer.close()
    time.sleep(2.0)
    left = [pid for pid in pids - {os.getpid()} if Path(f"/proc/{pid}").exists() and _is_ours(pid)]
    if left:
        wrong.append(f"processes {left} are left")
    if more := set(os.listdir("/dev/shm")) - shm_before:
        wrong.append(f"/dev/shm has {sorted(more)}")
    return {
        "seconds": elapsed,
        "rows": num_rows,
        "last": last,
        "restarts": trainer.faults.restarts,
        "faults_with_a_lane": sum(kinds.values()),
        "kinds": dict(kinds),
        "lanes_with_faults": len(lanes),
        "samples": samples,
        "wrong": wrong[:20],
        "num_wrong": len(wrong),
    }


def _is_ours(pid: int) -> bool:
    """Whether a process is still one of this program: its number may have been given to another."""
    try:
        return b"quintain" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def page(about: dict[str, Any]) -> str:
    """Returns the page of results."""
    seconds, samples, last = about["seconds"], about["samples"], about["last"]

    def median_of(sixth: int, name: str) -> float:
        some = [each[name] for each in samples if sixth <= 6 * each["seconds"] / seconds < sixth + 1]
        return statistics.median(some) if some else math.nan

    growth = median_of(5, "megabytes") / median_of(1, "megabytes")
    rate = about["restarts"] / seconds
    names = ("collected", "waiting", "open", "discarded", "dropped", "broken")
    counts = {name: int(last[f"fragments/{name}"]) for name in names}
    rows = (
        ("faults a second", "at least 1", f"{rate:.2f}", rate >= 1.0),
        (
            "faults told with their lane, of all",
            f"{about['restarts']:,}",
            f"{about['faults_with_a_lane']:,}",
            about["restarts"] == about["faults_with_a_lane"],
        ),
        ("rows, batches or ends in which something was wrong", "0", str(about["num_wrong"]), not about["num_wrong"]),
        ("memory of the last sixth over that of the second", "at most 1.05", f"{growth:.3f}", growth <= WANTED_MEMORY),
    )
    lines = [
        "# Soak",
        "",
        f"Written by `make soak` (`bench/soak.py`, which has all settings and what is wanted): {LANES} lanes in "
        f"{GROUPS} groups and {PROCESSES} processes, {WORKERS} workers, {seconds / 60:.0f} minutes. Load of the "
        f"machine (2 cores, shared with others): {min(each['load'] for each in samples):.1f} to "
        f"{max(each['load'] for each in samples):.1f}.",
        "",
        "| what | wanted | found | |",
        "|---|---|---|---|",
        *(f"| {what} | {wanted} | {found} | {'yes' if is_met else '**no**'} |" for what, wanted, found, is_met in rows),
        "",
        f"{about['rows']:,} updates, each with its accounts checked. At the end {counts['collected']:,} steps were "
        f"collected: {int(last['step']):,} learned, {counts['waiting']:,} waiting, {counts['open']:,} open, "
        f"{counts['discarded']:,} discarded and {counts['dropped']:,} dropped "
        f"(too old {int(last['fragments/dropped_stale']):,}, over capacity "
        f"{int(last['fragments/dropped_capacity']):,}). "
        f"{counts['broken']:,} steps broke and are in no fragment. Environments were made again {about['restarts']:,} "
        f"times, in {about['lanes_with_faults']} of {LANES} lanes, by cause: "
        + ", ".join(f"`{code}` {count:,}" for code, count in sorted(about["kinds"].items()))
        + ".",
        "",
        "| part of the time | memory of all, MB | of the learner, MB | processes | descriptors of the learner |",
        "|---|---|---|---|---|",
    ]
    for sixth in range(6):
        values = [median_of(sixth, name) for name in ("megabytes", "learner_megabytes", "processes", "descriptors")]
        lines.append(f"| {sixth + 1} of 6 | " + " | ".join(f"{value:,.0f}" for value in values) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder of the results")
    options = parser.parse_args()
    about = soak(60.0 * options.minutes)
    (options.into / "soak.json").write_text(json.dumps(about) + "\n")
    (options.into / "soak.md").write_text(page(about))
    print(page(about))


if __name__ == "__main__":
    main()
