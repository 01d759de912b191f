"""Measures quintain and its peers side by side and writes docs/results/bench.md and bench.json.

Repetitions are the outer loop, so that a slow minute of the machine meets every peer alike, and results are compared
within a repetition. `python bench/run.py --help` lists the options; without any it runs everything there is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from importlib import import_module
from pathlib import Path

import report
from environments import CannotInstall, interpreter, one_thread

HERE = Path(__file__).resolve().parent
OURS = "quintain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", default=_modules("peers"), help="default: all")
    parser.add_argument("--workloads", nargs="+", default=_modules("workloads"), help="default: all")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=6.0, help="length of one measurement")
    options = parser.parse_args()

    pythons, absent = _prepare(sorted({OURS, *options.peers}))
    runs = [
        {"workload": workload, "peer": peer, "repetition": repetition, **result}
        for workload in options.workloads
        for repetition in range(options.repetitions)
        for peer, python in pythons.items()
        for result in [_measure(python, peer, workload, repetition, options.seconds)]
    ]
    print(f"wrote {report.write(runs, absent, ours=OURS)}")


def _modules(folder: str) -> list[str]:
    return sorted(path.stem for path in (HERE / folder).glob("*.py") if path.stem != "__init__")


def _prepare(names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Returns the interpreter of every peer that can run here, and why the others cannot."""
    pythons: dict[str, Path] = {}
    absent: dict[str, str] = {}
    for name in names:
        try:
            pythons[name] = interpreter(name, import_module(f"peers.{name}").REQUIREMENTS)
        except CannotInstall as reason:
            absent[name] = str(reason)
            print(f"{name} is left out: {reason}")
    return pythons, absent


def _measure(python: Path, peer: str, workload: str, seed: int, seconds: float) -> dict[str, object]:
    command = [str(python), str(HERE / "measure.py"), peer, workload, str(seed), str(seconds)]
    # The first iterations and imports come on top of the measured time.
    done = subprocess.run(
        command, cwd=HERE, env=one_thread(), capture_output=True, text=True, check=False, timeout=120 + 20 * seconds
    )
    if done.returncode:
        raise SystemExit(f"{peer} failed on {workload}:\n{done.stderr.strip()}")
    result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    rate, foreign = result["steps_per_second"], result["foreign_cores"]
    print(f"{workload} #{seed} {peer:10s} {rate:8.0f} steps/s, others used {foreign:.2f} cores", flush=True)
    return result


if __name__ == "__main__":
    main()
