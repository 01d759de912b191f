"""An environment of its own for every kit of packages, made once under a cache folder and reused.

The folder is $QUINTAIN_BENCH_CACHE, else quintain-bench in $XDG_CACHE_HOME or ~/.cache. `python bench/environments.py`
makes them all (or those named) and says which could not be made; a failure is remembered until `--again`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch==2.13.0"
PIP_MINUTES = 30


class CannotInstall(Exception):
    """A kit could not be installed; the message is for the report."""


@dataclass(frozen=True)
class Kit:
    """What pip installs beside torch, and what to do where pip alone is not enough."""

    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = (TORCH,)
    optional: tuple[str, ...] = ()
    """What some workloads need; the kit is good without it."""
    bare: tuple[str, ...] = ()
    """What is installed without what it asks for, because it asks for what cannot be installed here."""
    finish: str | None = None
    """`module:function` that gets the kit's Python and folder after pip is done."""


def _own_dependencies() -> tuple[str, ...]:
    """Returns what this checkout needs; its own code is found by PYTHONPATH."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["dependencies"])


def _own_versions() -> tuple[str, ...]:
    """Returns the versions that this checkout is tested with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return tuple(line for line in lines if line and not line.startswith("#"))


_MUJOCO = "gymnasium[mujoco]==1.4.0"
_BOX2D = "gymnasium[box2d]==1.4.0"
_ENVPOOL = "envpool==1.2.5"
_ATARI = ("ale-py", "opencv-python-headless")

KITS: dict[str, Kit] = {
    "quintain": Kit((*_own_dependencies(), _MUJOCO, _BOX2D, _ENVPOOL), constraints=_own_versions(), optional=_ATARI),
    "sb3": Kit(("stable-baselines3==2.9.2", _MUJOCO, _BOX2D, _ENVPOOL), optional=_ATARI),
    "sb3_contrib": Kit(("sb3-contrib==2.9.2", "stable-baselines3==2.9.2", _MUJOCO)),
    "skrl": Kit(("skrl==2.1.1", _MUJOCO, "tensorboard")),
    "rsl_rl": Kit(("rsl-rl-lib==5.5.1", _MUJOCO, _ENVPOOL, "tensorboard")),
    "tianshou": Kit(("tianshou==2.0.1", "gymnasium[mujoco]", _ENVPOOL)),
    "torchrl": Kit(("torchrl==0.14.1", _MUJOCO)),
    "sbx": Kit(("sbx-rl==0.28.0", "gymnasium[mujoco]", "gymnax", _ENVPOOL)),
    "rlox": Kit(("rlox==1.2.0", "gymnasium[mujoco]")),
    "sample_factory": Kit(("sample-factory==2.1.1", "gymnasium[mujoco]")),
    "rllib": Kit(("ray[rllib]==2.60.0", "gymnasium[mujoco]")),
    "pufferlib": Kit(
        (
            "numpy<2",
            "setuptools<80",
            "ninja",
            "cython<3.1",
            "gymnasium[mujoco]==0.29.1",
            "gym==0.23",
            "pettingzoo==1.24.1",
            "shimmy[gym-v21]",
            "psutil",
            "nvidia-ml-py",
            "rich",
            "rich_argparse",
            "imageio",
            "pyro-ppl",
            "heavyball",
        ),
        finish="pufferlib_source:build",
    ),
    # The last release for this Python. It asks for a torch that is older than this Python.
    "mlagents": Kit(
        (
            "numpy==1.23.5",
            "protobuf==3.20.3",
            "grpcio",
            "cattrs==1.5.0",
            "attrs==22.2.0",
            "pyyaml",
            "pillow",
            "tensorboard==2.11.2",
            "h5py",
            "cloudpickle",
            "six",
            "setuptools<80",
        ),
        bare=("mlagents==0.28.0", "mlagents-envs==0.28.0"),
    ),
}

UNAVAILABLE = {
    "cleanrl": "its releases with PPO and SAC (1.x) need a Python older than 3.11",
}
"""Peers that there is no kit for, and why."""


def cache() -> Path:
    """Returns the folder that holds the environments."""
    if own := os.environ.get("QUINTAIN_BENCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quintain-bench"


def interpreter(name: str, *, again: bool = False) -> Path:
    """Returns the Python of a kit's environment, which is made if it is not there or not as the table says."""
    kit, place = KITS[name], cache() / name
    python, record = place / "bin" / "python", place / "kit.json"
    wanted = [*kit.constraints, *kit.requirements, *kit.bare]
    known = json.loads(record.read_text()) if record.is_file() else {}
    if known.get("requirements") == wanted and (known["failure"] is None or not again):
        if known["failure"] is not None:
            raise CannotInstall(known["failure"])
        return python
    print(f"installing {name} into {place} ...", flush=True)
    venv.create(place, with_pip=True, clear=True)
    try:
        _install(python, place, kit)
        failure = None
    except CannotInstall as reason:
        failure = str(reason)
    record.write_text(json.dumps({"requirements": wanted, "failure": failure}, indent=1) + "\n")
    if failure is not None:
        raise CannotInstall(failure)
    return python


def _install(python: Path, place: Path, kit: Kit) -> None:
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join([*kit.constraints, ""]))
    # torch first and pinned: resolved together with a peer, pip may choose a build with gigabytes of CUDA.
    numpy = next((wanted for wanted in kit.requirements if wanted.startswith("numpy")), "numpy")
    pip(python, f"--constraint={constraints}", TORCH, numpy)
    pip(python, f"--constraint={constraints}", *kit.requirements)
    if kit.bare:
        pip(python, "--no-deps", *kit.bare)
    if kit.optional:
        with suppress(CannotInstall):
            pip(python, f"--constraint={constraints}", *kit.optional)
    if kit.finish is not None:
        module, _, function = kit.finish.partition(":")
        finish: Callable[[Path, Path], None] = getattr(import_module(module), function)
        finish(python, place)


def pip(python: Path, *arguments: str, verb: str = "install") -> None:
    """Runs pip in a kit's environment; raises CannotInstall with its last error."""
    command = [str(python), "-m", "pip", verb, "--quiet", "--disable-pip-version-check", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60 * PIP_MINUTES)
    except subprocess.TimeoutExpired:
        raise CannotInstall(f"pip was not done after {PIP_MINUTES} minutes") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.lower().startswith("error")]
        raise CannotInstall((lines or [f"pip exited with code {done.returncode}"])[-1])


def failures() -> dict[str, str]:
    """Returns why kits could not be installed here."""
    records = {name: cache() / name / "kit.json" for name in KITS}
    known = {name: json.loads(path.read_text())["failure"] for name, path in records.items() if path.is_file()}
    return {**UNAVAILABLE, **{name: reason for name, reason in known.items() if reason is not None}}


def process_environment(threads: int) -> dict[str, str]:
    """Returns the environment variables of a measured process: its threads, our package importable, no GPU."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    xla = f"--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads={threads}" if threads == 1 else ""
    return {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "XLA_FLAGS": xla,
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONWARNINGS": "ignore",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kits", nargs="*", metavar="KIT", help=f"of {', '.join(KITS)}; default: all")
    parser.add_argument("--again", action="store_true", help="try those that failed before once more")
    options = parser.parse_args()
    for name in options.kits or KITS:
        try:
            print(f"{name}: {interpreter(name, again=options.again)}", flush=True)
        except CannotInstall as reason:
            print(f"{name}: cannot be installed: {reason}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    # By its name: a kit's last step imports this module to say why it failed.
    import_module("environments").main()
