"""Runs in a peer's own interpreter: one training run of one workload, one line of JSON.

python measure.py PEER WORKLOAD SEED SECONDS
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

import workloads
from meter import Meter


def main(peer_name: str, workload_name: str, seed: str, seconds: str) -> None:
    import torch

    torch.set_num_threads(1)
    peer = import_module(f"peers.{peer_name}")
    meter = Meter(seconds=float(seconds))
    peer.train(workloads.find(workload_name), int(seed), meter.tick)
    print(json.dumps({**meter.result(), "versions": {name: _version(name) for name in peer.PACKAGES}}))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from this checkout"


if __name__ == "__main__":
    main(*sys.argv[1:])
