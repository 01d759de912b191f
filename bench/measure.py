"""Runs in a peer's own interpreter: one training run of one workload, one line of JSON after RESULT.

python measure.py PEER ENTRY WORKLOAD SEED SECONDS THREADS
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

RESULT = "RESULT "


def main(peer_name: str, entry: str, workload: str, seed: str, seconds: str, threads: str) -> NoReturn:
    import meter
    import processes
    from workloads import WORKLOADS

    work = WORKLOADS[workload]
    peer = import_module(f"peers.{peer_name}")
    gauge = meter.meter_of(work, float(seconds))
    getattr(peer, work.kind)(work, entry, int(seed), int(threads), gauge.tick)
    about = {
        "peak_megabytes": processes.peak_megabytes(processes.tree(os.getpid())),
        "versions": {name: _version(name) for name in peer.PACKAGES},
    }
    print(RESULT + json.dumps({**gauge.result(), **about}), flush=True)
    # Some libraries leave threads or processes behind that would never let the interpreter end, or outlive it.
    processes.end(processes.tree(os.getpid())[1:])
    os._exit(0)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from this checkout"


if __name__ == "__main__":
    main(*sys.argv[1:])
