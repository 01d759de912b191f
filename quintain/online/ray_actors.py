"""MineStudio's actors on Ray: a rollout manager that is an `ActorHandle`, and a GAE worker that answers `.remote()`.

Without Ray both are objects of this process; `ask` calls either. Ray is imported only by `connect`.
"""

from __future__ import annotations

import atexit
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from quintain.placements.settings import RaySettings

if TYPE_CHECKING:
    from quintain.online.settings import OnlineConfig
    from quintain.typing import Saved

LOCAL = "local"
"""The address of a cluster on this machine, which is started for this process."""
_CLUSTER = "quintain.placements.ray.cluster"


def connect(config: OnlineConfig, address: str) -> None:
    """Connects this process to a cluster until it ends."""
    rollout, train = config.rollout_config, config.train_config
    settings = RaySettings(
        address=None if address == LOCAL else address,
        num_readers=train.num_readers,
        num_cpus_per_reader=train.num_cpus_per_reader,
    )
    min_cpus = rollout.num_rollout_workers * rollout.num_cpus_per_worker + train.num_workers * settings.cpus_of_rank
    atexit.register(import_module(_CLUSTER).Cluster.join(settings, min_cpus, has_ranks=True).leave)


def has_joined() -> bool:
    """Whether this process has joined a cluster, for a run or by `connect`."""
    module = sys.modules.get(_CLUSTER)
    return module is not None and module.Cluster._current is not None


def as_actor(cls: type, *arguments: object) -> Saved:
    """Returns the handle of an actor, which ends with the last handle to it."""
    ray = import_module("ray")
    return ray.remote(num_cpus=0)(cls).remote(*arguments)


def is_actor(part: object) -> bool:
    """Whether it is the handle of an actor."""
    return "ray.actor" in sys.modules and isinstance(part, sys.modules["ray.actor"].ActorHandle)


def own_actor(rank: int, part: Saved, cls: type, *arguments: object) -> Saved:
    """Returns the script's actor for rank 0, and one of its own for another, which would change it meanwhile."""
    return as_actor(cls, *arguments) if rank and is_actor(part) else part


def ask(part: Saved, method: str, *arguments: object) -> Saved:
    """Calls a method of an object here, or of an actor, and returns its result."""
    called = getattr(part, method)
    return import_module("ray").get(called.remote(*arguments)) if is_actor(part) else called(*arguments)
