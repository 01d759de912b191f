"""Small states, runs and disks that the tests of checkpoints and run directories share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from quintain.services.checkpoints.manager import CheckpointManager

ABOUT = {"fingerprint": "f00d", "exactness": "L3"}


def state_at(step: int) -> dict:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3) + step
    return {"training": {"policy": {"weight": weights}, "env_steps": step}, "records": {"seconds": 0.5}}


def committed(directory: Path, *steps: int, keep: int = 9) -> CheckpointManager:
    manager = CheckpointManager(directory, keep=keep)
    for step in steps:
        manager.commit(state_at(step), step=step, about=ABOUT)
    return manager


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != ".reserve")


def never(text: str) -> None:
    raise AssertionError(f"unexpected notice: {text}")


def flip_bit(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << (bit % 8)
    path.write_bytes(data)


def run_python(code: str, *arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-c", code, *arguments]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def run_on_small_disk(directory: Path, code: str) -> str:
    """Runs code with a file system of 256 kB mounted on the directory; it vanishes with the process."""
    lines = ["import sys", *(line.removeprefix("            ") for line in code.splitlines())]
    mount = f'mount -t tmpfs -o size=256k tmpfs "{directory}" && exec "$0" "$@"'
    done = run_python("\n".join(lines), str(directory), before=("unshare", "-rm", "sh", "-c", mount))
    if "Operation not permitted" in done.stderr:
        pytest.skip("this system lets no user mount a file system; the tests with patched calls cover the logic")
    assert done.returncode == 0, done.stderr
    return done.stdout
