"""Measures how long a user of MineStudio's names waits for the first update, beside `quintain train` with the same run.

One is a script with generators of its own that calls `start_rolloutmanager` and `start_trainer`; the other is the
same text as a configuration module. Rounds are interleaved, the first fills the caches and is left out. CPU seconds are
those of the learner's process. Writes docs/results/online_start.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "online_start.json"
FIRST_ROW = "update 1/"
MODULE = """
from quintain.envs.minecraft.tasks import look
from quintain.policies import RecurrentImagePolicy

def env_generator():
    return look()

def policy_generator():
    env = env_generator()
    return RecurrentImagePolicy(env.observation_space, env.action_space)

online_dict = {
    "rollout_config": {"fragment_length": 16, "worker_config": {"num_envs": 2},
                       "replay_buffer_config": {"max_staleness": 1, "max_reuse": 1}},
    "train_config": {"num_iterations": 2, "batches_per_iteration": 4, "gradient_accumulation": 2},
}
"""
SCRIPT = f"""{MODULE}
if __name__ == "__main__":
    from quintain.online import start_rolloutmanager, start_trainer

    start_rolloutmanager(policy_generator, env_generator, online_dict)
    start_trainer(policy_generator, env_generator, online_dict)
"""

Moment = dict[str, float]


def measure(command: list[str], folder: str) -> Moment:
    """Returns the seconds from the command to the row of the first update."""
    started = time.perf_counter()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    assert process.stdout is not None
    moments = []
    for line in process.stdout:
        if line.startswith(FIRST_ROW):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            moments.append({"wall": time.perf_counter() - started, "cpu": cpu})
    if process.wait() or len(moments) != 1:
        raise SystemExit(f"expected the row of one first update; the command exited with {process.returncode}")
    return moments[0]


def measure_round() -> dict[str, Moment]:
    """Measures both ways once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.py").write_text(SCRIPT)
        Path(folder, "my_config.py").write_text(MODULE)
        return {
            "start_trainer": measure([sys.executable, "main.py"], folder),
            "quintain train": measure([sys.executable, "-m", "quintain", "train", "my_config.py"], folder),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = [measure_round() for _ in range(parser.parse_args().rounds + 1)][1:]
    ways, clocks = list(rounds[0]), ("wall", "cpu")
    report = {
        "rounds": len(rounds),
        "seconds to the first update": {
            way: {clock: round(median(each[way][clock] for each in rounds), 2) for clock in clocks} for way in ways
        },
        "start_trainer / quintain train": {
            clock: round(median(each[ways[0]][clock] / each[ways[1]][clock] for each in rounds), 2) for clock in clocks
        },
    }
    RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
