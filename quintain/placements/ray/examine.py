"""What `quintain doctor --ray` tells: versions, address, token, resources and storage of a Ray cluster."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from quintain.errors import QuintainError
from quintain.placements.ray import api
from quintain.placements.ray.cluster import Cluster
from quintain.placements.settings import RaySettings

Line = tuple[str, str, str]
"""What it is about, its state (ok, note or missing), and a sentence."""
_COMPARED = ("python", "quintain", "ray", "torch", "numpy")
_NODE_SECONDS = 60.0
"""Timeout for a node to start a process and to say what it has."""


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
        nodes = described_nodes(runs_dir.absolute())
    finally:
        cluster.leave()
    yield from about_nodes(nodes, describe_node(runs_dir.absolute()), is_local=address is None)
    yield about_storage(nodes, runs_dir, is_local=address is None)


def describe_node(runs_dir: Path) -> dict[str, str]:
    """Returns versions, authentication and storage of the node that it is called on."""
    found = {"python": platform.python_version()}
    for package in ("quintain", "ray", "torch", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    found["token"] = "yes" if api.has_authentication() else "no"
    found["storage"] = "yes" if runs_dir.is_dir() else "no"
    return found


def described_nodes(runs_dir: Path) -> dict[str, dict[str, str]]:
    """Calls `describe_node` on every node; returns what each said by its address, or why it said nothing."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    task = ray.remote(num_cpus=0, max_retries=0)(describe_node)
    calls = {}
    for node in ray.nodes():
        if node["Alive"]:
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            calls[f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"] = task.options(
                scheduling_strategy=there
            ).remote(runs_dir)
    found = {}
    for name, call in calls.items():
        try:
            found[name] = dict(api.get(call, _NODE_SECONDS))
        except api.RayFailure as error:
            found[name] = {"failed": str(error).strip().rpartition("\n")[2][:200]}
    return found


def about_nodes(nodes: Mapping[str, Mapping[str, str]], here: Mapping[str, str], *, is_local: bool) -> Iterator[Line]:
    """Yields what differs between the nodes and this process, and whether the cluster wants a token."""
    strange = []
    for name, node in nodes.items():
        if "failed" in node:
            strange.append(f"{name} cannot run quintain: {node['failed']}")
            continue
        others = [f"{each} {node[each]}" for each in _COMPARED if node[each] != here[each]]
        if others:
            strange.append(f"{name} has {', '.join(others)}")
    own = ", ".join(f"{each} {here[each]}" for each in _COMPARED)
    if strange:
        told = f"{'; '.join(strange)}. Here: {own}. Install the same on all nodes: digests, and sometimes runs, need it"
        yield "ray versions", "missing" if any("failed" in node for node in nodes.values()) else "note", told
    else:
        yield "ray versions", "ok", f"the same on all nodes: {own}"
    open_nodes = [name for name, node in nodes.items() if node.get("token") == "no"]
    if open_nodes and not is_local:
        yield (
            "ray authentication",
            "note",
            "the cluster has none: every process that reaches it can run code there. Start it with RAY_AUTH_MODE=token",
        )
    elif not is_local:
        yield "ray authentication", "ok", "the cluster wants a token"


def about_storage(nodes: Mapping[str, Mapping[str, str]], runs_dir: Path, *, is_local: bool) -> Line:
    """Returns whether the folder of runs can be written here, and which nodes see it."""
    place = runs_dir if runs_dir.is_dir() else Path.cwd()
    if not os.access(place, os.W_OK):
        return "ray storage", "missing", f"{runs_dir} cannot be written"
    more = ""
    if not is_local:
        num_reaching = sum(node.get("storage") == "yes" for node in nodes.values())
        seen = f"{num_reaching} of {len(nodes)} nodes have this folder" if runs_dir.is_dir() else "it is not there yet"
        more = f"; one learner writes it from here; with several, rank 0 must reach it ({seen})"
    return "ray storage", "ok", f"{runs_dir}, {shutil.disk_usage(place).free / 1e9:.0f} GB free{more}"


def _about_token() -> Line:
    mode = os.environ.get("RAY_AUTH_MODE", "")
    default = Path.home() / ".ray" / "auth_token"
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or default)
    if mode == "disabled":
        return "ray token", "note", "RAY_AUTH_MODE=disabled: every process that reaches the cluster can run code there"
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
