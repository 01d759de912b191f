"""Runs on an existing Ray cluster of two nodes: `make test-ray` writes docs/results/ray_cluster.md.

The cluster is made by Ray's own utility, `ray.cluster_utils.Cluster`, on this machine: two raylets with an object store
each. Every cell is a driver of its own that joins by an address. Actors, and then a node, are killed between two
updates.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from quintain.errors import QuintainError
from tests import warm
from tests.resume.test_workers import is_alive

RESULTS = warm.ROOT / "docs" / "results" / "ray_cluster.md"
CYCLES, STEPS = 8, 128
TOKEN = "5" * 64
SHIPPED = """
import os
import gymnasium
class Shipped(gymnasium.Wrapper):
    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))
        with open(os.environ["SHIPPED_NOTES"], "a") as notes:
            notes.write(__file__ + chr(10))
"""


@dataclass
class Driver:
    """What a driver is told, and what it says when it has trained."""

    address: str | None
    kind: str = "lanes"
    """lanes, fragments, or a file of the working directory."""
    placement: dict[str, Any] = field(default_factory=dict)
    kills: str = ""
    """Kill the first rollout actor, or this node's raylet, after the second update: actor, or a pid."""


def drive(words: dict[str, Any]) -> dict[str, Any]:
    """Trains as told, in the process of the driver."""
    from quintain import Trainer
    from quintain.services.checkpoints.state_files import digest_of
    from quintain.services.events import After

    told = Driver(**words)
    more = {"rollout.type": "fragments", "rollout.num_fragments": 4} if told.kind == "fragments" else {}
    env = "shipped_env:Shipped" if told.kind == "shipped" else "CartPole-v1"
    placement = {"type": "ray", "address": told.address, "num_actors": 2, "num_cpus_per_actor": 0.6, **told.placement}
    began = time.monotonic()
    trainer: Any = Trainer(
        "ppo", env, num_lanes=4, num_collectors=2, num_steps=32, batch_size=64, num_epochs=1, seed=3, max_staleness=1,
        writers=[], events=[], placement=placement if told.address else "local", **more,
    )  # fmt: skip
    lines: list[str] = []
    trainer.faults.listen(lambda fault, line: lines.append(line), lambda reason: None)
    made = time.monotonic() - began

    def kill(trainer: Any) -> None:
        if trainer.progress.iteration == 2:
            first = trainer.source.placement.workers[0].pid
            os.kill(first if told.kills == "actor" else int(told.kills), signal.SIGKILL)

    if told.kills:
        trainer.events.add(After("update"), kill)
    began = time.monotonic()
    trainer.train(CYCLES * STEPS)
    found = {
        "env_steps": trainer.progress.env_steps,
        "restarts": trainer.faults.restarts,
        "warnings": sorted({line.partition("]")[0].partition("[")[2] for line in lines}),
        "digest": digest_of(trainer.state_dict()),
        "made": made,
        "trained": time.monotonic() - began,
    }
    trainer.close()
    return found


def run(driver: Driver, environment: dict[str, str], folder: Path) -> dict[str, Any]:
    """Runs a driver in a process of its own; returns what it said, or its last line."""
    command = [sys.executable, "-m", "tests.placements.ray_cluster_cells", json.dumps(vars(driver))]
    shipped = {"SHIPPED_NOTES": str(folder / "notes")} if driver.kind == "shipped" else {}
    path = os.pathsep.join([str(warm.ROOT), *([str(folder)] if driver.kind == "shipped" else [])])
    done = subprocess.run(
        command, env={**os.environ, **environment, **shipped, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        cwd=warm.ROOT, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    last = (done.stdout.splitlines() or [""])[-1]
    if done.returncode == 0:
        return {"exit": 0, **json.loads(last)}
    return {"exit": done.returncode, "said": (done.stderr.strip().splitlines() or [""])[-1]}


@dataclass(frozen=True)
class Nodes:
    """A cluster of which every node but the head can be killed."""

    address: str
    client: str
    raylets: list[int]
    """The processes whose death is that of a node, the head's not among them."""


@contextmanager
def cluster(environment: dict[str, str], num_nodes: int = 2) -> Iterator[Nodes]:
    """Makes a cluster of nodes with 2 CPUs each, in a process of its own: Ray reads its token once."""
    command = [sys.executable, "-m", "tests.placements.ray_cluster_cells", "--cluster", str(num_nodes)]
    more = {"PYTHONPATH": str(warm.ROOT), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, env={**os.environ, **environment, **more}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as host:
        assert host.stdin is not None
        assert host.stdout is not None
        for line in host.stdout:
            if line.startswith("{"):
                yield Nodes(**json.loads(line))
                break
        else:
            raise AssertionError("Ray made no cluster")
        host.stdin.close()


def serve(num_nodes: int) -> None:
    """Makes a cluster, says where it is, and ends it when the input ends."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 2, "include_dashboard": False, "ray_client_server_port": 20431}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        nodes = [made.add_node(num_cpus=2) for _ in range(num_nodes - 1)]
        raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
        words = {"address": made.address, "client": "ray://127.0.0.1:20431", "raylets": raylets}
        print(json.dumps(words), flush=True)
        sys.stdin.read()
    finally:
        made.shutdown()


def environment_of(mode: str) -> dict[str, str]:
    """Returns the variables of a cluster with (`token`) or without (`disabled`) authentication, and of its drivers."""
    token = {"RAY_AUTH_TOKEN": TOKEN} if mode == "token" else {}
    # Beside other work a raylet may need longer than Ray allows by default.
    return {"RAY_AUTH_MODE": mode, **token, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "300"}


def cells(folder: Path) -> Iterator[tuple[str, bool, str]]:
    """Yields each cell: its name, whether it is as promised, and what was seen."""
    local = run(Driver(None), {}, folder)
    for mode in ("disabled", "token"):
        environment, has_token = environment_of(mode), mode == "token"
        with cluster(environment) as nodes:
            if has_token:
                wrong = run(Driver(nodes.address), {**environment, "RAY_AUTH_TOKEN": "6" * 64}, folder)
                yield "a wrong token is refused in one line", "E0546" in str(wrong.get("said")), _seen(wrong)
            for name, driver, more in (
                ("HOST:PORT", Driver(nodes.address), {}),
                ("auto (RAY_ADDRESS)", Driver("auto"), {"RAY_ADDRESS": nodes.address}),
                ("ray://", Driver(nodes.client), {}),
            ):
                found = run(driver, {**environment, **more}, folder)
                is_warned = "W0541" in found.get("warnings", [])
                is_right = found.get("digest") == local["digest"] and is_warned != has_token
                yield f"{name}, authentication: {mode}", is_right, _seen(found)
            if has_token:
                continue
            for name, driver in (
                ("fragments", Driver(nodes.address, "fragments")),
                ("fragments through ray://", Driver(nodes.client, "fragments")),
                ("kill -9 of a rollout actor", Driver(nodes.address, kills="actor")),
                ("kill -9 of a rollout actor, fragments", Driver(nodes.address, "fragments", kills="actor")),
            ):
                found = run(driver, environment, folder)
                is_right = found.get("env_steps") == CYCLES * STEPS and found["restarts"] == int(bool(driver.kills))
                yield name, is_right, _seen(found)
            yield _shipped(nodes.address, environment, folder)
        with cluster(environment) as nodes:
            (raylet,) = nodes.raylets
            found = run(Driver(nodes.address, kills=str(raylet)), environment, folder)
            is_right = found.get("env_steps") == CYCLES * STEPS and found["restarts"] == 1 and not is_alive(raylet)
            yield "kill -9 of the raylet of one of two nodes", is_right, _seen(found)


def _shipped(address: str, environment: dict[str, str], folder: Path) -> tuple[str, bool, str]:
    """Ships a folder with the environment's module, and a variable."""
    ships = folder / "ships"
    ships.mkdir(exist_ok=True)
    (ships / "shipped_env.py").write_text(SHIPPED)
    variables = {"SHIPPED_NOTES": str(folder / "notes")}
    placement = {"runtime_env": {"working_dir": str(ships), "env_vars": variables}}
    found = run(Driver(address, "shipped", placement), {**environment, "PYTHONPATH": ""}, ships)
    notes = folder / "notes"
    files = notes.read_text().split() if notes.exists() else []
    is_right = found["exit"] == 0 and any("working_dir_files" in each for each in files)
    return "a module and a variable that Ray ships", is_right, _seen(found)


def _seen(found: dict[str, Any]) -> str:
    if found["exit"]:
        # The address of this machine says nothing.
        said = re.sub(r"\d+(\.\d+){3}:\d+", "HOST:PORT", found["said"])
        return f"exit {found['exit']}: {said[:300]}"
    more = f", {', '.join(found['warnings'])}" if found["warnings"] else ""
    return f"made in {found['made']:.0f} s, trained in {found['trained']:.0f} s, {found['restarts']} restarts{more}"


def main() -> int:
    if sys.argv[1:2] == ["--cluster"]:
        serve(int(sys.argv[2]))
        return 0
    if len(sys.argv) > 1:
        try:
            print(json.dumps(drive(json.loads(sys.argv[1]))))
        except QuintainError as error:
            print(error.lines()[0], file=sys.stderr)
            return error.exit_code
        return 0
    found: list[tuple[str, bool, str]] = []
    with tempfile.TemporaryDirectory() as name:
        for cell in cells(Path(name)):
            print(cell, flush=True)
            found.append(cell)
            # As they are seen: one that fails takes nothing away from those before.
            RESULTS.write_text(page(found))
    return int(not all(is_right for _, is_right, _ in found))


def page(found: list[tuple[str, bool, str]]) -> str:
    lines = [
        "# Runs on an existing Ray cluster",
        "",
        "Written by `make test-ray`: a cluster of two nodes by `ray.cluster_utils.Cluster` on one machine, two rollout",
        f"actors, PPO on CartPole, {CYCLES} updates, `max_staleness: 1`. Undisturbed lanes must have the digest",
        "of `placement: local`. Times are on a machine that was shared.",
        "",
        "| cell | as promised | seen |",
        "|---|---|---|",
        *(f"| {name} | {'yes' if is_right else 'no'} | {seen} |" for name, is_right, seen in found),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
