"""The connection of this process to a Ray cluster: an existing one, or one on this machine that ends with the process.

One connection serves all runs of a process; the last that leaves closes it. A connection that the user's script opened
is used and left open.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import CollectorDied, ResourceError, ServiceError, SettingsError
from quintain.placements.ray import api
from quintain.placements.ray.start_worker import SOCKET
from quintain.placements.settings import RaySettings
from quintain.services.processes.child_environment import code_paths
from quintain.services.processes.supervisor import Child, Supervisor
from quintain.services.reporting.digits import plural

if TYPE_CHECKING:
    from quintain.typing import JsonObject

HEAD_SECONDS = 120.0
"""Timeout for the head of a local cluster to start."""
FREE_SECONDS = 10.0
"""How long resources that other runs have are waited for; those of one that has just ended are free in a moment."""
ACTOR_MODULE = "quintain.runs.rollout_actor"
_HEAD_MODULE = "quintain.placements.ray.head"
_FORKS_MODULE = "quintain.placements.ray.forks"
_LOOK_SECONDS = 0.25
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
# Ray resolves 127.0.0.1 to the machine's address unless it takes it for one that cannot have several nodes.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
_OF_RAY = "r"
"""The folder within the cluster's that Ray fills, and opens to all users of the machine."""
_MAX_FOLDER = 18
"""A socket's path has 107 characters at most, of which names below the folder take up to 88."""
_token = secrets.token_hex(32)
"""One for all local clusters of this process: Ray reads it once."""


class LocalHead:
    """A cluster on this machine, as a supervised child."""

    def __init__(self, num_cpus: int, *, prestarts: bool, has_ranks: bool) -> None:
        """Begins to start it; `num_cpus` are what Ray counts, which may be more than the machine has.

        With `prestarts`, as many workers begin before an actor wants one. With `has_ranks`, Ray Train finds the server
        that it asks whether its controller lives.
        """
        self.has_server = has_ranks
        self.supervisor = Supervisor([_HEAD_MODULE])
        self.child: Child = self.supervisor.start("ray-head", f"{_HEAD_MODULE}:serve")
        # Made when there is a server that removes it, also if this process is killed in a moment.
        self.directory = Path(tempfile.mkdtemp(prefix="quintain-ray-", dir=_short_folder()))
        self.supervisor.remove_at_end(self.directory)
        token = self.directory / "token"
        token.touch(mode=0o600)
        token.write_text(_token)
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_ADDRESS": "",
            **_LOOPBACK,
            **_QUIET,
        }
        self.child.send(
            {
                "environment": self.environment,
                "num_cpus": num_cpus,
                "directory": str(self.directory / _OF_RAY),
                "prestarts": prestarts,
                "has_server": self.has_server,
            }
        )
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(self.directory / SOCKET))
            listener.listen()
            self.forks: Child = self.supervisor.start("ray-forks", f"{_FORKS_MODULE}:serve")
            self.forks.send({"modules": [ACTOR_MODULE]}, [listener.fileno()])

    def await_address(self) -> str:
        """Returns the cluster's address once it is ready."""
        deadline = time.monotonic() + HEAD_SECONDS
        why = f"was not ready after {HEAD_SECONDS:g} s"
        while time.monotonic() < deadline:
            message = self.child.receive(waits=True)
            self.supervisor.read_reports()
            if message:
                words = json.loads(message)
                if "address" in words:
                    return str(words["address"])
                why = f"cannot start: {words['failed']}"
                break
            if message is not None or self.child.is_over:
                why = f"{self.child.describe_end()} {self.child.last_output.strip()[-300:]}"
                break
        raise ServiceError(f"run.placement.type ray: the local cluster {why}", code="E0547")

    def require_alive(self) -> None:
        """Raises the error of a cluster that has ended."""
        self.supervisor.read_reports()
        if self.child.is_over:
            raise CollectorDied(
                f"the local Ray cluster {self.child.describe_end()}. Continue from the last checkpoint with: quintain "
                f"resume",
                code="E0544",
            )

    def close(self) -> None:
        """Ends the cluster with all its processes; nothing in it is needed any more."""
        self.supervisor.close()
        # On a machine that is very busy the server may have been ended before it came to that.
        shutil.rmtree(self.directory, ignore_errors=True)


class Cluster:
    """A connection to a cluster; `join` returns the one of this process."""

    _current: Cluster | None = None

    def __init__(self, settings: RaySettings, min_cpus: float = 0.0, *, has_ranks: bool = False) -> None:
        self.num_users = 0
        self.is_open = True
        self.wanted = settings.address
        self.runtime_env = settings.runtime_env
        # The cores of one machine are shared by the operating system, so its own run is never too large for it.
        num_cpus = max(os.cpu_count() or 1, ceil(min_cpus))
        is_local = settings.address is None and not is_connected()
        # Not where most of the processes would have no actor.
        prestarts = num_cpus <= 2 * min_cpus
        self.head = LocalHead(num_cpus, prestarts=prestarts, has_ranks=has_ranks) if is_local else None
        self.before: dict[str, str | None] = {}
        self.is_ours: bool | None = None
        """Whether the connection ends with its last user; None before there is one."""

    @classmethod
    def begin(cls, settings: RaySettings, min_cpus: float = 0.0, *, has_ranks: bool = False) -> Cluster:
        """Begins to start a local cluster, for a user that joins later; returns what has to be left once more.

        A local cluster then has `min_cpus` CPUs or more, as Ray counts them, and with `has_ranks` what Ray Train needs.
        """
        current = cls._current
        if current is None:
            current = cls._current = cls(settings, min_cpus, has_ranks=has_ranks)
        elif current.wanted != settings.address:
            raise ServiceError(
                f"run.placement.address: this process is connected to {current.wanted or 'a cluster of its own'} for "
                f"another run, and Ray allows one cluster in a process; use the same, or another process",
                code="E0546",
            )
        elif settings.runtime_env and settings.runtime_env != current.runtime_env:
            raise ServiceError(
                "run.placement.runtime_env: this process is connected to its cluster for another run, which ships "
                "something else; use the same, close that run, or use another process",
                code="E0546",
            )
        elif has_ranks and current.head is not None and not current.head.has_server:
            raise ServiceError(
                "run.placement.num_ranks: the local cluster of this process was started for a run of one rank, and "
                "lacks the server that Ray Train asks; close that run, or use another process",
                code="E0546",
            )
        current.num_users += 1
        return current

    @classmethod
    def join(cls, settings: RaySettings, min_cpus: float = 0.0, *, has_ranks: bool = False) -> Cluster:
        """Returns the connection of this process, opening it for the first run."""
        current = cls.begin(settings, min_cpus, has_ranks=has_ranks)
        try:
            if current.is_ours is None:
                current.is_ours = current._connect(settings)
        except BaseException:
            current.leave()
            raise
        return current

    def leave(self) -> None:
        """Closes the connection with its last user, and a local cluster with it."""
        self.num_users -= 1
        if self.num_users > 0:
            return
        Cluster._current, self.is_open = None, False
        if self.is_ours:
            import ray

            # At the end of the interpreter Ray cannot import what it needs for that, and has done it before.
            with suppress(ImportError):
                ray.shutdown()
        if self.before:
            import ray

            ray._private.ray_constants.ENABLE_RAY_CLUSTER = sys.platform == "linux"
        for name, value in self.before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        if self.head is not None:
            self.head.close()

    def require_alive(self) -> None:
        """Raises the error of a local cluster that has ended."""
        if self.head is not None:
            self.head.require_alive()

    def _connect(self, settings: RaySettings) -> bool:
        """Connects; returns False if the user's script has done so before."""
        address = settings.address if self.head is None else self.head.await_address()
        if self.head is not None:
            self._set_environment(self.head.environment)
        import ray

        if ray.is_initialized():
            if settings.runtime_env and not is_in_ray():
                raise SettingsError(
                    "run.placement.runtime_env: this script is connected by its own ray.init(), after which nothing "
                    "is shipped; give runtime_env to ray.init() instead",
                    code="E0253",
                )
            return False
        runtime_env = dict(settings.runtime_env) or None
        api.require_runtime_env(settings.runtime_env)
        try:
            if settings.address is not None:
                api.require_listener(settings.address)
            with _signals_and_streams_kept(), api.without_listener():
                ray.init(
                    address=address,
                    runtime_env=runtime_env,
                    log_to_driver=False,
                    configure_logging=False,
                    logging_level="ERROR",
                )
        except Exception as error:  # of whatever Ray meets on its way there
            first = str(error).strip().partition("\n")[0].rstrip(".")
            asked = "" if settings.address is None else f" --address {settings.address}"
            raise ServiceError(
                f"run.placement.address: cannot connect to the Ray cluster at {address}: {type(error).__name__}: "
                f"{first}. `quintain doctor --ray{asked}` says what is known of it",
                code="E0546",
            ) from error
        return True

    def _set_environment(self, environment: Mapping[str, str]) -> None:
        names = {*environment, *_AUTHENTICATION}
        self.before = {name: os.environ.get(name) for name in names}
        for name in names:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in environment.items() if value})
        if "ray" in sys.modules:
            # They were read from the environment of before.
            import ray

            ray._raylet.Config.initialize("")
            ray._private.ray_constants.ENABLE_RAY_CLUSTER = False

    def require_free(self, num_actors: int, settings: RaySettings) -> None:
        """Refuses actors that the cluster cannot hold, at once; waits shortly for resources that others have."""
        import ray

        each = {"CPU": settings.num_cpus_per_actor, **settings.resources_per_actor}
        each = {name: amount for name, amount in each.items() if amount}
        nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        self._refuse(num_actors, each, nodes, "has")
        deadline = time.monotonic() + FREE_SECONDS
        while True:
            free = ray.available_resources()
            missing = {name: amount for name, amount in each.items() if free.get(name, 0.0) < amount * num_actors}
            if not missing:
                return
            if time.monotonic() > deadline:
                self._refuse(num_actors, each, [dict(free)], "has free")
            time.sleep(_LOOK_SECONDS)

    def require_room(self, num_ranks: int, num_actors: int, settings: RaySettings) -> None:
        """Refuses ranks, and rollout actors beside them, that the cluster can never hold."""
        import ray

        wanted = {name: amount * num_actors for name, amount in settings.resources_per_actor.items()}
        wanted["CPU"] = num_ranks * settings.cpus_of_rank + num_actors * settings.num_cpus_per_actor
        share = settings.num_gpus_per_rank
        if share:
            wanted["GPU"] = wanted.get("GPU", 0.0) + num_ranks * share
        nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        found = _sum_of(nodes, wanted)
        num_held = sum(_num_on_gpus(node.get("GPU", 0.0), share) for node in nodes) if share else num_ranks
        if num_held < num_ranks or any(found[name] < amount for name, amount in wanted.items()):
            raise ResourceError(
                f"run.placement: {_listed(wanted)} are needed for {plural(num_ranks, 'rank')} and "
                f"{plural(num_actors, 'rollout actor')}, and the Ray cluster has {_listed(found)} on "
                f"{plural(len(nodes), 'node')}. Lower num_ranks, num_actors or what each reserves, add nodes, or set "
                f"min_ranks",
                code="E0545",
            )

    def _refuse(self, num: int, each: Mapping[str, float], nodes: list[dict[str, float]], has: str) -> None:
        num_held = sum(_num_fitting(node, each) for node in nodes)
        if num_held >= num:
            return
        wanted = {name: amount * num for name, amount in each.items()}
        raise ResourceError(
            f"run.placement: {_listed(wanted)} are needed for {plural(num, 'rollout actor')}, and the Ray cluster "
            f"{has} {_listed(_sum_of(nodes, each))} on {plural(len(nodes), 'node')}, which is room for {num_held}. "
            f"Lower num_actors, num_cpus_per_actor or resources_per_actor, or add nodes",
            code="E0545",
        )


def code_paths_for(settings: RaySettings) -> JsonObject:
    """Returns where workers of a cluster may find code; a working directory that Ray ships takes the place of ours."""
    paths = code_paths()
    return {**paths, "cwd": ""} if "working_dir" in settings.runtime_env else paths


def is_connected() -> bool:
    """Whether this process is connected to a cluster, by the user's script or as a worker of it."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


def is_in_ray() -> bool:
    """Whether this process is a worker of a cluster, and so connected to it."""
    if not is_connected():
        return False
    import ray

    return bool(ray.get_runtime_context().worker.mode == ray.WORKER_MODE)


def _sum_of(nodes: Sequence[Mapping[str, float]], names: Iterable[str]) -> dict[str, float]:
    """Returns what all nodes together have of these resources."""
    return {name: sum(node.get(name, 0.0) for node in nodes) for name in names}


def _listed(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _num_fitting(node: Mapping[str, float], each: Mapping[str, float]) -> int:
    """Returns how many actors fit on a node.

    >>> _num_fitting({"CPU": 5.0, "wandb": 1.0}, {"CPU": 2.0})
    2
    >>> _num_fitting({"CPU": 5.0}, {"CPU": 2.0, "GPU": 1.0})
    0
    """
    return min((int(node.get(name, 0.0) / amount + 1e-9) for name, amount in each.items()), default=1_000_000)


def _num_on_gpus(num_gpus: float, share: float) -> int:
    """Returns how many ranks the GPUs of a node hold: what a rank has of a GPU is of one.

    >>> _num_on_gpus(2.0, 0.6), _num_on_gpus(2.0, 0.5)
    (2, 4)
    """
    return int(num_gpus) * int(1.0 / share + 1e-9)


def _short_folder() -> str:
    """Returns the folder of temporary files, or `/tmp` where its path is too long for sockets."""
    found = tempfile.gettempdir()
    return found if len(found) <= _MAX_FOLDER else "/tmp"


@contextmanager
def _signals_and_streams_kept() -> Iterator[None]:
    """Keeps the handlers of signals, and Python's global random stream: Ray takes both when it connects."""
    stream = random.getstate()
    if threading.current_thread() is not threading.main_thread():
        yield
        random.setstate(stream)
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        random.setstate(stream)
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
