"""Starts `quintain` with several ranks in real processes, and finds those processes again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import warm

ENVIRONMENT = {**warm.ENVIRONMENT, "NO_COLOR": "1"}
SETTINGS = (
    "num_lanes=4", "num_steps=32", "batch_size=64", "num_epochs=2", "normalize_obs=true", "adaptive_kl=0.01",
    "normalize_reward=true",
    "checkpoint.every_updates=2", "checkpoint.every_seconds=null", "num_ranks=2",
)  # fmt: skip
EVALUATION = 'experiment.behaviors.default.events=[{"type": "evaluate", "num_episodes": 2, "every_env_steps": 600}]'


def train(run: str, *words: str, env: str = "CartPole-v1") -> list[str]:
    return ["train", "ppo", env, *SETTINGS, EVALUATION, "--run-id", run, "--quiet", *words]


def start(folder: Path, words: list[str], launcher: tuple[str, ...] = ("-m", "quintain")) -> subprocess.Popen[str]:
    return warm.Popen(
        [sys.executable, *launcher, *words],
        cwd=folder,
        env=ENVIRONMENT,
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Returns the exit status and everything that was printed."""
    out, err = process.communicate(timeout=120)
    return process.returncode, out + err


def run(folder: Path, words: list[str], **options: Any) -> tuple[int, str]:
    return finish(start(folder, words, **options))


def children(pid: int) -> list[int]:
    """Lists the rank processes that a process started."""
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [
        int(entry.name) for entry in entries if _parent(entry) == pid and b"resource_tracker" not in _command(entry)
    ]


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def _parent(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


def _command(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:
        return b""
