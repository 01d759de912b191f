"""What Ray costs on one machine, beside Ray alone and beside processes; writes docs/results/ray_speed.md.

Fixed before the first recorded run, in interleaved rounds of one process each; every run is kept in ray_speed.json, and
a criterion holds if the median of its rounds does:

start       from the command to the end of the first update with 2 rollout actors, over a bare Ray start: a script that
            imports Ray, starts a local cluster and 2 actors that import nothing, and calls each once. Wanted: at most
            1.5 times.
ranks       the same with 2 ranks that have an actor each, over a bare start with 2 actors and then an empty
            `TorchTrainer`: 2 workers of 1 CPU whose function returns at once, until `fit` has. Wanted: at most
            1.5 times.
broadcast   newest weights of 50 MB from the learner to 4 rollout actors of fragments, until all have them, over one
            copy of as many bytes into the object store (`ray.put` of one array). Actors read them there, and copy them
            once, into the policy that acts, before the next act. Median of 10 of each in turns, after 3 that are not
            counted. Wanted: at most 3 times. Since run 4 the copy before is held until the next is there, as versions
            are: 50 MB into memory that the store has used before take 3 ms, and into fresh memory 20 ms, so that
            runs before compared the one with the other by chance.
throughput  env steps/s with 2 rollout actors and an environment of 10 ms a step, over 2 collector processes: PPO, one
            lane each, blocks of 64 steps, max_staleness 1. Wanted: at least 0.9 times.

Beside them, for the page on clusters (bench/cluster_needs.py): seconds of one call of an actor, bytes/s into the object
store, and bytes/s of reading a block out of it and copying it into the learner's.

python bench/ray_speed.py [--rounds N] [--seconds S] [--into FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
WANTED = {
    "start": ("at most", 1.5),
    "ranks": ("at most", 1.5),
    "broadcast": ("at most", 3.0),
    "throughput": ("at least", 0.9),
}
TRAIN = (
    "-m", "quintain", "train", "ppo", "CartPole-v1", "num_lanes=8", "num_steps=64", "seed=1", "total_timesteps=1024",
    "events=[]", "placement=ray",
)  # fmt: skip
FIRST_ROW = "step 512/"
BARE = """
import ray
class Bare:
    def answer(self):
        return 1
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
actors = [ray.remote(num_cpus=1)(Bare).remote() for _ in range(2)]
assert ray.get([actor.answer.remote() for actor in actors]) == [1, 1]
print("ready", flush=True)
ray.shutdown()
"""
EMPTY_TRAINER = """
import os
def learn():
    pass
def fit():
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    scaling = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 1})
    TorchTrainer(learn, scaling_config=scaling, run_config=RunConfig(storage_path=os.getcwd())).fit()
"""
BARE_RANKS = EMPTY_TRAINER + BARE.replace("num_cpus=2", "num_cpus=4").replace("print(", "fit()\nprint(")
STARTS = {
    "bare": ("ready", ["-c", BARE]),
    "first_update": (FIRST_ROW, [*TRAIN, "num_collectors=2", "placement.num_actors=2"]),
    "bare_ranks": ("ready", ["-c", BARE_RANKS]),
    "first_update_ranks": (FIRST_ROW, [*TRAIN, "placement.num_ranks=2", "placement.num_actors=1"]),
}
"""The beginning of the line that is waited for, and the command."""
KINDS = (*STARTS, "broadcast", "ray", "processes")
NUM_ACTORS, HIDDEN = 4, 2468
"""Actor and critic with two layers of so many units each have 50 MB."""


class Slow(gymnasium.Env[Any, Any]):
    """A task of 10 ms a step."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (64,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(64, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        self.age += 1
        return np.full(64, 0.01 * (self.age % 100), np.float32), float(action == 0), False, self.age % 100 == 0, {}


def seconds_to(line_start: str, command: list[str]) -> float:
    """Runs a command; returns the seconds to the first line that begins so."""
    found = None
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "errors", "w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=environment()
        )
        assert process.stdout is not None
        for line in process.stdout:
            if found is None and line.startswith(line_start):
                found = time.perf_counter() - started
        if process.wait() or found is None:
            errors.seek(0)
            raise SystemExit(f"{command} exited with {process.returncode}: {errors.read()[-2000:]}")
    return found


def environment() -> dict[str, str]:
    more = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    # A bare start would write a token into the home folder.
    return {**os.environ, **more, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}


def measure_broadcast() -> dict[str, Any]:
    import ray

    from quintain import Trainer
    from quintain.placements.snapshots import Label

    trainer: Any = Trainer(
        "ppo", "bench.ray_speed:Slow", num_lanes=NUM_ACTORS, num_collectors=NUM_ACTORS, num_steps=8, batch_size=32,
        hidden_sizes=[HIDDEN, HIDDEN], compiled=False, events=[], writers=[], max_staleness=1,
        placement={"type": "ray", "num_actors": NUM_ACTORS, "num_cpus_per_actor": 0.25},
        **{"rollout.type": "fragments", "rollout.num_fragments": 4},
    )  # fmt: skip
    policy, published = trainer.policy, trainer.source.shares["default"].published
    num_bytes = sum(value.nbytes for value in policy.state_dict().values())
    whole, copies, broadcasts = np.random.default_rng(0).random(num_bytes // 8), [], []
    for number in range(13):
        started = time.perf_counter()
        # The one before is there until then, as a version is that actors still read.
        kept = ray.put(whole)
        copies.append(time.perf_counter() - started)
        started = time.perf_counter()
        published.publish(Label(number, 1), policy)
        published.wait()
        broadcasts.append(time.perf_counter() - started)
    del kept
    costs = transport_costs(trainer)
    trainer.close()
    return {
        "megabytes": num_bytes / 1e6,
        "copy_seconds": statistics.median(copies[3:]),
        "broadcast_seconds": statistics.median(broadcasts[3:]),
        **costs,
    }


def transport_costs(trainer: Any) -> dict[str, float]:
    """Returns seconds of a call, and bytes/s into the object store and out of it into memory of this process."""
    import ray

    worker = trainer.source.placement.workers[0]
    block = np.random.default_rng(0).random(4_000_000)
    into, calls, puts, reads = np.empty_like(block), [], [], []
    for _ in range(20):
        began = time.perf_counter()
        ray.get(worker.control("pulse"))
        called = time.perf_counter()
        reference = ray.put(block)
        held = time.perf_counter()
        np.copyto(into, ray.get(reference))
        read = time.perf_counter()
        calls.append(called - began)
        puts.append(held - called)
        reads.append(read - held)
    return {
        "call_seconds": statistics.median(calls[5:]),
        "put_bytes_per_second": block.nbytes / statistics.median(puts[5:]),
        "read_bytes_per_second": block.nbytes / statistics.median(reads[5:]),
    }


def measure_throughput(placement: str, seconds: float) -> dict[str, Any]:
    from quintain import Trainer

    trainer: Any = Trainer(
        "ppo", "bench.ray_speed:Slow", num_lanes=2, num_collectors=2, num_steps=64, batch_size=64, num_epochs=4,
        compiled=False, events=[], writers=[], max_staleness=1, placement=placement, total_timesteps=10**9,
    )  # fmt: skip
    trainer.advance()
    started, first = time.perf_counter(), trainer.progress.env_steps
    while time.perf_counter() - started < seconds:
        trainer.advance()
    found = (trainer.progress.env_steps - first) / (time.perf_counter() - started)
    trainer.close()
    return {"steps_per_second": found}


def measured(kind: str, seconds: float) -> dict[str, Any]:
    """Measures in a process of its own."""
    if kind in STARTS:
        line_start, words = STARTS[kind]
        return {"seconds": seconds_to(line_start, [sys.executable, *words])}
    command = [sys.executable, __file__, f"--measure={kind}", f"--seconds={seconds}"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{kind} failed: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def ratios(rounds: list[dict[str, Any]]) -> dict[str, list[float]]:
    return {
        "start": [each["first_update"]["seconds"] / each["bare"]["seconds"] for each in rounds],
        "ranks": [each["first_update_ranks"]["seconds"] / each["bare_ranks"]["seconds"] for each in rounds],
        "broadcast": [each["broadcast"]["broadcast_seconds"] / each["broadcast"]["copy_seconds"] for each in rounds],
        "throughput": [each["ray"]["steps_per_second"] / each["processes"]["steps_per_second"] for each in rounds],
    }


def page(runs: list[dict[str, Any]]) -> str:
    """Returns the page of results: every run, the newest first."""
    lines = [
        "# What Ray costs on one machine",
        "",
        "Written by `make bench-ray` (`bench/ray_speed.py`, which says what is measured). Ratios compare measurements "
        "of one round; every run is here, the newest first.",
    ]
    for number, run in reversed(list(enumerate(runs, 1))):
        lines += ["", f"## Run {number}", "", *_section(run)]
    return "\n".join(lines) + "\n"


def _section(run: dict[str, Any]) -> list[str]:
    rounds = run["rounds"]
    loads = [each["load"] for each in rounds]
    lines = [
        f"{len(rounds)} rounds on {run['cores']} cores, {run['when']}; load of the machine before each round: "
        f"{min(loads):.1f} to {max(loads):.1f}.",
        "",
        "| criterion | wanted | median | holds | all rounds |",
        "|---|---|---|---|---|",
    ]
    for name, found in ratios(rounds).items():
        word, bound = WANTED[name]
        middle = statistics.median(found)
        holds = middle <= bound if word == "at most" else middle >= bound
        shown = ", ".join(f"{each:.2f}" for each in found)
        lines.append(f"| {name} | {word} {bound:g} | {middle:.2f} | {'yes' if holds else 'no'} | {shown} |")
    costs = medians(run)
    return [
        *lines,
        "",
        f"Medians: bare start {costs['bare']:.1f} s, first update {costs['first_update']:.1f} s; with 2 ranks "
        f"{costs['bare_ranks']:.1f} s and {costs['first_update_ranks']:.1f} s; copy of "
        f"{costs['megabytes']:.0f} MB into the object store {1e3 * costs['copy_seconds']:.0f} ms, broadcast to "
        f"{NUM_ACTORS} actors {1e3 * costs['broadcast_seconds']:.0f} ms; {costs['ray']:.0f} steps/s on Ray, "
        f"{costs['processes']:.0f} in processes. A call takes {1e3 * costs['call_seconds']:.1f} ms; "
        f"{costs['put_bytes_per_second'] / 1e9:.1f} GB/s go into the object store, and "
        f"{costs['read_bytes_per_second'] / 1e9:.1f} GB/s from it into a block.",
        *(["", run["note"]] if "note" in run else []),
    ]


def medians(run: dict[str, Any]) -> dict[str, float]:
    """Returns the median of each measured cost of a run."""
    rounds = run["rounds"]
    found = {name: statistics.median(each["broadcast"][name] for each in rounds) for name in rounds[0]["broadcast"]}
    for kind in STARTS:
        found[kind] = statistics.median(each[kind]["seconds"] for each in rounds)
    for kind in ("ray", "processes"):
        found[kind] = statistics.median(each[kind]["steps_per_second"] for each in rounds)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--measure", choices=KINDS[len(STARTS) :], help="one measurement, printed as JSON")
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder of the results")
    options = parser.parse_args()
    if options.measure == "broadcast":
        print(json.dumps(measure_broadcast()))
        return
    if options.measure:
        print(json.dumps(measure_throughput(options.measure, options.seconds)))
        return
    rounds = []
    for number in range(options.rounds):
        found: dict[str, Any] = {"load": os.getloadavg()[0]}
        for kind in KINDS[number % len(KINDS) :] + KINDS[: number % len(KINDS)]:
            found[kind] = measured(kind, options.seconds)
            print(kind, found[kind], flush=True)
        rounds.append(found)
    kept = options.into / "ray_speed.json"
    runs = json.loads(kept.read_text()) if kept.exists() else []
    runs.append({"when": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "rounds": rounds})
    kept.write_text(json.dumps(runs, indent=1) + "\n")
    (options.into / "ray_speed.md").write_text(page(runs))
    print(page(runs[-1:]))


if __name__ == "__main__":
    main()
