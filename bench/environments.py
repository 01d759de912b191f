"""An environment of its own for every peer that needs one, made once under .cache/bench and reused."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "bench"
CONSTRAINTS = ROOT / "constraints.txt"


class CannotInstall(Exception):
    """A peer's packages could not be installed; the message is for the report."""


def interpreter(name: str, requirements: Sequence[str]) -> Path:
    """Returns the Python that runs a peer: ours, or that of an environment with its requirements."""
    if not requirements:
        return Path(sys.executable)
    wanted = "\n".join([*requirements, CONSTRAINTS.read_text()])
    place = CACHE / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    python = place / "bin" / "python"
    done = place / "installed"
    if not done.exists():
        print(f"installing {name} into {place.relative_to(ROOT)} ...", flush=True)
        venv.create(place, with_pip=True, clear=True)
        # torch first and pinned: resolved together with a peer, pip may choose a build with gigabytes of CUDA.
        _pip(python, ["torch"])
        _pip(python, requirements)
        done.touch()
    return python


def _pip(python: Path, requirements: Sequence[str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    result = subprocess.run(
        [*command, "--constraint", str(CONSTRAINTS), *requirements], capture_output=True, text=True, check=False
    )
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise CannotInstall((lines or [f"pip exited with code {result.returncode}"])[-1])


def one_thread() -> dict[str, str]:
    """Returns the process environment for a measurement: one thread, our package importable, no GPU."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
