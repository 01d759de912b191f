"""Measures lanes in worker processes against Gymnasium's AsyncVectorEnv, which has one process for each environment.

Both step the same environments with the same actions, one after the other in each round, so that a slow minute of the
machine meets all alike; each is compared with Gymnasium's of its own round. Ours resets every episode with a seed of
its own, restarts what breaks and notes what every lane is doing; theirs does not. Writes docs/results/workers.*.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from quintain.core.rng import Rng
from quintain.envs.gym.make import gym_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.settings.run import EnvWorkerSettings
from tests.envs.fragile import Walk

ENVS: dict[str, tuple[str, dict[str, Any], Callable[[], Any]]] = {
    "CartPole-v1": ("CartPole-v1", {}, partial(gymnasium.make, "CartPole-v1")),
    "1 ms a step": ("tests.envs.fragile:Walk", {"step_seconds": 0.001}, partial(Walk, 0.001)),
}
LANES = (8, 64)
RESULTS = Path(__file__).parents[1] / "docs" / "results"


def actions(num_lanes: int) -> Any:
    return np.random.default_rng(0).integers(0, 2, (256, num_lanes))


def rate(step: Callable[[int], object], num_lanes: int, seconds: float) -> float:
    """Returns environment steps per second; what is slow only at first is left out."""
    for number in range(20):
        step(number)
    num_steps, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        step(num_steps)
        num_steps += 1
    return num_steps * num_lanes / elapsed


def ours(env: str, num_lanes: int, num_workers: int | None, seconds: float) -> float:
    name, kwargs, _ = ENVS[env]
    hosting = Hosting.from_settings(EnvWorkerSettings(num_workers=num_workers))
    made = gym_env(GymSettings(id=name, kwargs=kwargs), num_lanes, Rng(0), hosting=hosting)
    made.reset()
    chosen = list(torch.from_numpy(actions(num_lanes)))
    found = rate(lambda number: made.step(chosen[number % 256]), num_lanes, seconds)
    made.close()
    return found


def theirs(env: str, num_lanes: int, seconds: float) -> float:
    made = gymnasium.vector.AsyncVectorEnv([ENVS[env][2]] * num_lanes)
    made.reset(seed=0)
    chosen = actions(num_lanes)
    found = rate(lambda number: made.step(chosen[number % 256]), num_lanes, seconds)
    made.close()
    return found


def measure(env: str, num_lanes: int, kind: int | str | None, seconds: float) -> float:
    return theirs(env, num_lanes, seconds) if isinstance(kind, str) else ours(env, num_lanes, kind, seconds)


def compare(rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Returns one row per environment, number of lanes and number of workers; ratios are medians over rounds."""
    cases = [(env, lanes, workers) for env in ENVS for lanes in LANES for workers in (2, 8, lanes)]
    found: dict[Any, list[float]] = {}
    for number in range(rounds):
        for env, lanes in [(env, lanes) for env in ENVS for lanes in LANES]:
            kinds: list[int | str | None] = ["async", None, *sorted({2, 8, lanes})]
            # Nobody is always the first.
            for kind in kinds[number % len(kinds) :] + kinds[: number % len(kinds)]:
                found.setdefault((env, lanes, kind), []).append(measure(env, lanes, kind, seconds))
    rows = []
    for env, lanes, workers in [(*case[:2], None) for case in cases[::3]] + sorted(set(cases), key=cases.index):
        async_rates, rates = found[env, lanes, "async"], found[env, lanes, workers]
        ratios = [mine / other for mine, other in zip(rates, async_rates, strict=True)]
        rows.append(
            {
                "env": env,
                "lanes": lanes,
                "workers": workers,
                "steps_per_second": statistics.median(rates),
                "gymnasium_steps_per_second": statistics.median(async_rates),
                "ratio": statistics.median(ratios),
                "lowest_ratio": min(ratios),
            }
        )
    return sorted(rows, key=lambda row: (list(ENVS).index(str(row["env"])), row["lanes"], row["workers"] or 0))


def as_page(report: dict[str, Any]) -> str:
    before, after = report["load"]
    lines = [
        "# Worker processes against Gymnasium's",
        "",
        f"`bench/workers.py`: {report['rounds']} rounds of {report['seconds']:g} s, in turns, on {report['cores']}",
        f"cores that other programs use too (load {before:.1f} before, {after:.1f} after). Steps of all lanes per",
        "second, medians; the ratio is the median of the rounds', with the lowest beside it. `AsyncVectorEnv` has one",
        "process for each lane; a step of 1 ms sleeps, so that more processes than cores make sense for it.",
        "",
        "| env | lanes | workers | quintain | AsyncVectorEnv | ratio | lowest |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        workers = "none" if row["workers"] is None else str(row["workers"])
        rates = f"{row['steps_per_second']:,.0f} | {row['gymnasium_steps_per_second']:,.0f}"
        ratio = f"{row['ratio']:.2f} | {row['lowest_ratio']:.2f}"
        lines.append(f"| {row['env']} | {row['lanes']} | {workers} | {rates} | {ratio} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    load = [os.getloadavg()[0]]
    rows = compare(options.rounds, options.seconds)
    about = {"rounds": options.rounds, "seconds": options.seconds, "cores": os.cpu_count()}
    report = {**about, "load": [*load, os.getloadavg()[0]], "rows": rows}
    (RESULTS / "workers.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "workers.md").write_text(as_page(report))
    print(as_page(report))
