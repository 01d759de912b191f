"""Runs in a peer's own interpreter: one training run of one workload, one line of JSON after RESULT.

python measure.py PEER ENTRY WORKLOAD SEED SECONDS THREADS
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NoReturn

RESULT = "RESULT "


def main(peer_name: str, entry: str, workload: str, seed: str, seconds: str, threads: str) -> NoReturn:
    import meter
    import processes
    from workloads import WORKLOADS

    work = WORKLOADS[workload]
    processes.keep_to_cores(max(work.threads))
    peer = import_module(f"peers.{peer_name}")
    gauge = meter.meter_of(work, float(seconds))
    about: dict[str, Any] = {"versions": {name: version_of(name) for name in peer.PACKAGES}}

    def tick(env_steps: int, recent_return: float | None = None) -> bool:
        is_over = gauge.tick(env_steps, recent_return)
        if is_over:
            # Now, while worker processes are alive.
            about["peak_megabytes"] = processes.peak_megabytes(processes.tree(os.getpid()))
        return is_over

    getattr(peer, work.kind)(work, entry, int(seed), int(threads), tick)
    print(RESULT + json.dumps({**gauge.result(), **about}), flush=True)
    # Some libraries leave threads or processes behind that would never let the interpreter end, or outlive it.
    processes.end(processes.tree(os.getpid())[1:])
    os._exit(0)


def version_of(package: str) -> str:
    """Returns what is installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "from this checkout"


if __name__ == "__main__":
    main(*sys.argv[1:])
