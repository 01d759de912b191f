"""Runs in a library's own interpreter: one workload of agents, one line of JSON after RESULT.

python agents_measure.py PEER WORKLOAD NUM_AGENTS SECONDS
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import NoReturn


def main(peer_name: str, workload: str, num_agents: str, seconds: str) -> NoReturn:
    import processes
    from measure import RESULT, version_of
    from meter import RateMeter

    peer, gauge = import_module(f"peers.{peer_name}"), RateMeter(float(seconds))
    getattr(peer, workload)(int(num_agents), gauge.tick)
    versions = {name: version_of(name) for name in peer.PACKAGES}
    megabytes = processes.peak_megabytes([os.getpid()])
    print(RESULT + json.dumps({**gauge.result(), "versions": versions, "peak_megabytes": megabytes}), flush=True)
    # ML-Agents would now write its models.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
