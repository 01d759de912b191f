"""Writes the runs that `test_stored_runs.py` resumes: `python tests/resume/stored/make.py` in a checkout.

Each run is trained to its end without a stop. What stands here is its directory as a kill in the middle would have left
it, with the weights, the optimizer's moments and the metric rows of its end. The files are only ever written again if
checkpoints of that age are no longer to be read, which the changelog must say.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from safetensors.numpy import save_file

from quintain.core.versions import facts
from quintain.services.checkpoints.catalog import CheckpointCatalog, load

HERE = Path(__file__).parent
AGENTS = "quintain.envs.agents"

_NETWORK = {"hidden_sizes": [8, 8]}
_PPO = {"type": "ppo", "batch_size": 64, "num_epochs": 2, "learning_rate": {"start": 1e-3, "end": 0.0}}
_TRAJECTORIES = {"buffer_size": 128, "time_horizon": 16}


def _run(env: dict[str, Any], behaviors: dict[str, Any], env_steps: int, **run: Any) -> dict[str, Any]:
    experiment = {"seed": 5, "budget": {"env_steps": env_steps}, "env": env, "behaviors": behaviors}
    checkpoint = {"every_updates": 1, "every_seconds": None, "keep": 1000}
    return {"experiment": experiment, "run": {"threads": 1, "writers": [], "checkpoint": checkpoint, **run}}


def _lanes(env_id: str, **behavior: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    env = {"type": "gym", "id": env_id, "num_lanes": 4}
    return env, {"default": {"algorithm": _PPO, "policy": _NETWORK, "rollout": {"num_steps": 32}, **behavior}}


def _agents(task: str, size: str, *names: str, **behavior: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    env = {"type": "agents", "id": f"{AGENTS}.{task}", "kwargs": {size: 5}, "num_lanes": 2}
    chosen = {"algorithm": _PPO, "policy": _NETWORK, "rollout": _TRAJECTORIES, **behavior}
    return env, dict.fromkeys(names, chosen)


RUNS: dict[str, dict[str, Any]] = {
    "ppo": _run(*_lanes("CartPole-v1"), 768),
    "ppo_threads": _run(
        *_lanes("CartPole-v1", rollout={"num_steps": 32, "max_staleness": 1}), 768, placement={"type": "threads"}
    ),
    "ppo_ranks": _run(*_lanes("CartPole-v1"), 768, placement={"type": "local", "num_ranks": 2}),
    "ppo_memory": _run(
        *_lanes("CartPole-v1", policy={**_NETWORK, "memory": {"cell": "lstm", "size": 8}, "normalize_obs": True}), 768
    ),
    "sac": _run(
        {"type": "gym", "id": "Pendulum-v1", "num_lanes": 1},
        {
            "default": {
                "algorithm": {"type": "sac", "batch_size": 16, "learning_starts": 50},
                "policy": {"type": "soft_actor", **_NETWORK},
                "rollout": {"type": "replay", "buffer_size": 400},
            }
        },
        240,
    ),
    "poca": _run(
        *_agents(
            "group_tasks:door",
            "num_groups",
            "Door",
            algorithm={**_PPO, "type": "poca", "embedding_size": 8},
            policy={"type": "actor_only", **_NETWORK},
        ),
        768,
    ),
    "two_behaviors": _run(*_agents("tasks:ball_and_gates", "num_agents", "Ball", "Gate"), 768),
    "agents_threads": _run(
        *_agents("tasks:balance_ball", "num_agents", "Ball", rollout={**_TRAJECTORIES, "max_staleness": 1}),
        768,
        placement={"type": "threads"},
    ),
}


def learned(state: Any) -> dict[str, np.ndarray]:
    """Returns the weights and the moments of a checkpoint's state by name."""
    found: dict[str, np.ndarray] = {}

    def visit(tree: Any, name: str) -> None:
        if isinstance(tree, dict):
            for key, below in tree.items():
                visit(below, f"{name}/{key}" if name else key)
        elif isinstance(tree, np.ndarray):
            found[name] = np.ascontiguousarray(tree)

    training = state["training"]
    learners = training.get("learners", {})
    if "policy" in training:
        parts = {key: training[key] for key in ("policy", "algorithm") if key in training}
        parts |= {f"learners/{name}": each["algorithm"] for name, each in learners.items()}
    elif "collectors" not in training.get("ranks", {"0": training})["0"]["source"]["collector"]:
        [parts] = learners.values()
        parts = {key: parts[key] for key in ("policy", "algorithm")}
    else:
        # Under the names that 0.1 gave them.
        weights = {
            f"members.{name}.{key}": value for name, each in learners.items() for key, value in each["policy"].items()
        }
        parts = {"policy": weights, **{f"learners/{name}": each["algorithm"] for name, each in learners.items()}}
    visit(parts, "")
    return found


def rows_of(run: Path) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


def cpu_model() -> str:
    """Returns the name of the processor: which kernels libraries choose depends on it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def make(name: str, runs_dir: Path) -> None:
    settings = runs_dir / f"{name}.yaml"
    settings.write_text(yaml.safe_dump(RUNS[name]))
    command = [sys.executable, "-m", "quintain", "train", str(settings), "--run-id", name, "--runs-dir", str(runs_dir)]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    run, target = runs_dir / name, HERE / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    checkpoints = sorted(entry.path for entry in CheckpointCatalog(run / "checkpoints").entries())
    save_file(learned(load(checkpoints[-1]).state), target / "end.safetensors")
    written = {"facts": {**facts(1), "cpu": cpu_model()}, "rows": rows_of(run)}
    (target / "end.json").write_text(json.dumps(written, indent=1))
    for later in checkpoints[len(checkpoints) // 2 + 1 :]:
        shutil.rmtree(later)
    for earlier in checkpoints[: len(checkpoints) // 2]:
        shutil.rmtree(earlier)
    shutil.copytree(
        run,
        target / "run",
        ignore=shutil.ignore_patterns("LOCK", ".reserve", "*.onnx", "workers", "crash", "timers.json"),
    )
    # Where a setting came from stands beside it, and names a folder of this machine.
    config = target / "run" / "config.yaml"
    config.write_text(config.read_text().replace(f"{runs_dir}/", ""))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for chosen in sys.argv[1:] or RUNS:
            make(chosen, Path(folder))
