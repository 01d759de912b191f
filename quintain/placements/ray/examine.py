"""What `quintain doctor --ray` tells: versions, address, token, resources and storage of a Ray cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from quintain.errors import QuintainError
from quintain.placements.ray.cluster import Cluster
from quintain.placements.settings import RaySettings

Line = tuple[str, str, str]
"""What it is about, its state (ok, note or missing), and a sentence."""


def examine(address: str | None, runs_dir: Path) -> Iterator[Line]:
    """Connects to a cluster, or starts one on this machine for a moment, and yields what is known of it."""
    yield "ray", "ok", version("ray")
    address = address or os.environ.get("RAY_ADDRESS") or None
    where = f"{address}; run.placement.address={address} uses it" if address else "none: a run starts a local cluster"
    yield "ray address", "ok", where
    if address is not None:
        yield _about_token()
    try:
        cluster = Cluster.join(RaySettings(address=address))
    except QuintainError as error:
        yield "ray cluster", "missing", error.message
        return
    try:
        yield from _about_cluster()
    finally:
        cluster.leave()
    place = runs_dir if runs_dir.is_dir() else Path.cwd()
    if not os.access(place, os.W_OK):
        yield "ray storage", "missing", f"{runs_dir} cannot be written"
        return
    more = "" if address is None else "; the driver writes it, so only the driver's node must reach it"
    yield "ray storage", "ok", f"{runs_dir}, {shutil.disk_usage(place).free / 1e9:.0f} GB free{more}"


def _about_token() -> Line:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    default = Path.home() / ".ray" / "auth_token"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or default)
    if mode == "disabled":
        return "ray token", "note", "RAY_AUTH_MODE=disabled: whoever reaches the cluster can run code on it"
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "ray token", "ok", "from RAY_AUTH_TOKEN"
    if path.is_file():
        return "ray token", "ok", "from RAY_AUTH_TOKEN_PATH" if path != default else "from the default file"
    return "ray token", "note", "there is none here; on the head node `ray get-auth-token` prints it"


def _about_cluster() -> Iterator[Line]:
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    total, free = ray.cluster_resources(), ray.available_resources()
    told = ", ".join(
        f"{free.get(name, 0.0):g} of {amount:g} {name}"
        for name, amount in sorted(total.items())
        if ":" not in name and "memory" not in name
    )
    yield "ray nodes", "ok", f"{len(nodes)}; free: {told}"
    store = total.get("object_store_memory", 0.0) / 1e9
    yield "ray objects", "ok" if store else "note", f"{store:.1f} GB of object store in all"
