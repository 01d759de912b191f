"""What readers save: how long a learner waits for fragments that were finished on another node while it learned.

Fixed before the first recorded run. A Ray cluster of two nodes on this machine, each with an object store of its own,
so that fragments cross between them through sockets as between two machines. Two rollout actors on the second node
fill updates of 32 fragments of 64 steps with 49,152 bytes of observation each, 101 MB; the learner's updates take
1.5 s, in which all of them are finished. Reported: the median seconds of 10 collects after 2 that are not counted,
without readers and with two, in turns of one run each, for a number of rounds. Writes docs/results/ray_readers.md.

python bench/ray_readers.py [--rounds N] [--into FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
NUM_FRAGMENTS, NUM_STEPS, NUM_NUMBERS = 32, 64, 12_288
NUM_COLLECTS, NUM_WARM, UPDATE_SECONDS = 10, 2, 1.5


class Wide(gymnasium.Env[Any, Any]):
    """Observations of the size of a frame of Minecraft."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_NUMBERS,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = self.np_random.uniform(-1.0, 1.0, NUM_NUMBERS).astype(np.float32)
        return self.frame, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.frame, 0.0, False, False, {}


def measure(num_readers: int) -> dict[str, float]:
    import ray
    from ray.cluster_utils import Cluster

    room = {"object_store_memory": 2_000_000_000}
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **room})
    made.add_node(num_cpus=2, resources={"far": 2}, **room)
    os.environ["RAY_ADDRESS"] = made.address
    from quintain import Trainer

    trainer: Any = Trainer(
        "ppo", "bench.ray_readers:Wide", num_lanes=8, num_collectors=2, num_steps=NUM_STEPS, batch_size=256,
        num_epochs=1, hidden_sizes=[8], compiled=False, events=[], writers=[], total_timesteps=10**9,
        placement={"type": "ray", "address": "auto", "resources_per_actor": {"far": 1}, "num_readers": num_readers},
        **{"rollout.type": "fragments", "rollout.num_fragments": NUM_FRAGMENTS, "max_staleness": 100},
    )  # fmt: skip
    waits: list[float] = []

    def idle(batch: Any, progress: Any) -> dict[str, float]:
        time.sleep(UPDATE_SECONDS)
        return {}

    collect = trainer._stage_collect

    def timed() -> bool:
        started = time.perf_counter()
        is_done = bool(collect())
        waits.append(time.perf_counter() - started)
        return is_done

    trainer.algorithm.learn, trainer._stage_collect = idle, timed
    for _ in range(NUM_WARM + NUM_COLLECTS):
        trainer.advance()
    trainer.close()
    ray.shutdown()
    made.shutdown()
    return {"seconds": statistics.median(waits[NUM_WARM:])}


def measured(num_readers: int) -> float:
    """Measures in a process of its own, with a cluster of its own."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64,
    }  # fmt: skip
    command = [sys.executable, __file__, f"--measure={num_readers}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{num_readers} readers failed: {done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def page(rounds: list[dict[str, float]], commit: str) -> str:
    cores, megabytes = os.cpu_count(), NUM_FRAGMENTS * (NUM_STEPS + 1) * NUM_NUMBERS * 4 / 1e6
    lines = [
        "# What readers save",
        "",
        "Written by `make bench-ray` (`bench/ray_readers.py`, which says what is measured): seconds that a learner",
        f"waits for {megabytes:.0f} MB of fragments that were finished on another node while it learned. Two nodes of",
        f"Ray on one machine with {cores} cores: what they send each other crosses the loopback interface, no network.",
        "",
        "| round | load before | no readers | 2 readers | ratio |",
        "|---|---|---|---|---|",
        *(
            f"| {number} | {each['load']:.1f} | {each['none']:.3f} | {each['two']:.3f} | {ratio:.2f} |"
            for number, each in enumerate(rounds, 1)
            for ratio in [each["none"] / each["two"]]
        ),
        "",
        f"Of {time.strftime('%d %B %Y')}, commit `{commit}`.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", type=int, help="one measurement with so many readers, printed as JSON")
    parser.add_argument("--into", type=Path, default=RESULTS, help="the folder of the results")
    options = parser.parse_args()
    if options.measure is not None:
        print(json.dumps(measure(options.measure)))
        return
    rounds = []
    for number in range(options.rounds):
        load = os.getloadavg()[0]
        found = {}
        for name, num in (("none", 0), ("two", 2))[:: 1 if number % 2 else -1]:
            found[name] = measured(num)
        rounds.append({"load": load, **found})
        print(rounds[-1], flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout
    (options.into / "ray_readers.md").write_text(page(rounds, commit.strip()))


if __name__ == "__main__":
    main()
