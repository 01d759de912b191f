"""Measures what environments that break cost: steps/s with faults by the clock against none, side by side.

Eight environments of 1 ms a step in four workers. The three kinds take turns, so that a slow minute of the machine
meets all alike, and each is compared with the undisturbed one of its own round. Writes docs/results/faults.*.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from quintain.core.rng import Rng
from quintain.envs.gym.make import gym_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.settings.run import EnvWorkerSettings

LANES, WORKERS = 8, 4
ENV = "tests.envs.fragile:BreaksOnCommand"
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def measure(how: str, seconds: float, faults_per_minute: float, seed: int) -> dict[str, float]:
    """Steps for a while; returns steps/s without those that broke, and how many faults a minute there were."""
    lenient = EnvWorkerSettings(num_workers=WORKERS, max_restarts=100_000, max_failures_in_a_row=1000)
    hosting = Hosting.from_settings(lenient)
    with tempfile.TemporaryDirectory() as folder:
        command = Path(folder, "break")
        kwargs = {"path": str(command), "how": how, "step_seconds": 0.001}
        env = gym_env(GymSettings(id=ENV, kwargs=kwargs), LANES, Rng(seed), hosting=hosting)
        env.reset()
        action = torch.zeros(LANES, dtype=torch.int64)
        between = 60.0 / faults_per_minute
        # Whichever lane sees the command first breaks: so many faults, whatever chance and the machine's speed say.
        num_steps, started, next_fault = 0, time.monotonic(), between / 2
        while (elapsed := time.monotonic() - started) < seconds:
            if how and elapsed > next_fault:
                command.touch()
                next_fault += between
            aborted = env.step(action).aborted
            num_steps += LANES - (0 if aborted is None else int(aborted.sum()))
        env.close()
    return {"steps_per_second": num_steps / elapsed, "faults_per_minute": hosting.faults.restarts / elapsed * 60.0}


def compare(rounds: int, seconds: float, faults_per_minute: float = 30.0) -> dict[str, Any]:
    """Returns the shares of the throughput that are left with exceptions and with deaths: the median over rounds."""
    found: dict[str, list[dict[str, float]]] = {"none": [], "raise": [], "kill": []}
    for number in range(rounds):
        # Nobody is always the first.
        kinds = [list(found)[(number + place) % len(found)] for place in range(len(found))]
        for kind in kinds:
            how = "" if kind == "none" else kind
            found[kind].append(measure(how, seconds, faults_per_minute, number))
    alone = [result["steps_per_second"] for result in found["none"]]
    report: dict[str, Any] = {"lanes": LANES, "workers": WORKERS, "rounds": rounds, "seconds": seconds}
    for kind in ("raise", "kill"):
        shares = [result["steps_per_second"] / without for result, without in zip(found[kind], alone, strict=True)]
        rates = [result["faults_per_minute"] for result in found[kind]]
        report[kind] = {
            "share": statistics.median(shares),
            "shares": shares,
            "faults_per_minute": statistics.mean(rates),
        }
    report["steps_per_second"] = statistics.median(alone)
    return report


def as_page(report: dict[str, Any]) -> str:
    before, after = report["load"]
    lines = [
        "# What environments that break cost",
        "",
        f"`bench/faults.py`: {LANES} environments of 1 ms a step in {WORKERS} workers, {report['rounds']} rounds of",
        f"{report['seconds']:g} s each, in turns, on a machine that other programs use too (load {before:.1f} before,",
        f"{after:.1f} after). A share is steps/s with faults divided by steps/s without in the same round, which were",
        f"{report['steps_per_second']:,.0f} in the median. Broken steps do not count.",
        "",
        "| what happens | how often | share, median | all rounds |",
        "|---|---|---|---|",
    ]
    for kind, what in (("raise", "`step()` raises"), ("kill", "the worker is killed, with two lanes")):
        found = report[kind]
        shares = ", ".join(f"{share:.2f}" for share in sorted(found["shares"]))
        lines.append(f"| {what} | {found['faults_per_minute']:.0f} a minute | {found['share']:.3f} | {shares} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    report = {**compare(options.rounds, options.seconds), "load": [load, os.getloadavg()[0]]}
    (RESULTS / "faults.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "faults.md").write_text(as_page(report))
    print(as_page(report))
