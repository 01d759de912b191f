"""Settings of the built-in placements. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, JsonValue

from quintain.core.registry import Registration
from quintain.settings.base import Count, PartSettings


class PlacementSettings(PartSettings):
    """Settings of a custom placement that needs none of its own."""


class LocalSettings(PlacementSettings):
    """Acts and learns in turns, in this process."""

    num_ranks: Count = 1
    """Processes on this machine that share the lanes and learn together; torchrun may start them instead."""

    max_failures: Annotated[int, Field(ge=0)] = 3
    """Ranks that may die one after another, with no checkpoint between them, before the run ends; 0 ends it at once."""


class ThreadsSettings(LocalSettings):
    """Acts in a thread for each collector; asynchronous, with `rollout.max_staleness` of at least 1."""


class ProcessesSettings(LocalSettings):
    """Acts in other processes beside each rank; asynchronous, with `rollout.max_staleness` of at least 1."""

    num_processes: Count | None = None
    """Processes that share the collectors (`experiment.env.num_collectors`); null is one for each."""


class RaySettings(LocalSettings):
    """Acts in actors of a Ray cluster, local or existing; asynchronous, with `rollout.max_staleness` of at least 1."""

    num_actors: Count | None = None
    """Rollout actors that share the collectors (`experiment.env.num_collectors`); null is one for each."""

    address: str | None = None
    """An existing cluster: auto, HOST:PORT or ray://HOST:PORT; null starts a cluster on this machine for the run."""

    num_cpus_per_actor: Annotated[float, Field(ge=0.0)] = 1.0
    """CPUs that the cluster reserves for each rollout actor."""

    resources_per_actor: dict[str, Annotated[float, Field(gt=0.0)]] = Field(default_factory=dict)
    """Further resources that the cluster reserves for each rollout actor, by name."""

    num_cpus_per_rank: Annotated[float, Field(ge=0.0)] = 1.0
    """CPUs that the cluster reserves for each rank, if there are several; one alone is the driver."""

    num_gpus_per_rank: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """GPU that the cluster reserves for each rank, which learns on it with `run.device: cuda`; or a fraction of one."""

    min_ranks: Count | None = None
    """Ranks with which a run begins or goes on where the cluster has no room for num_ranks; null is num_ranks."""

    num_readers: Annotated[int, Field(ge=0)] = 0
    """Threads of each learner that bring finished blocks and fragments to its node while it learns; 0 is off."""

    num_cpus_per_reader: Annotated[float, Field(ge=0.0)] = 0.1
    """CPUs that the cluster reserves for each reader, with its rank; nothing is reserved for one rank, the driver."""

    prefetch_batches: Annotated[int, Field(ge=0)] = 2
    """Batches that readers may bring ahead of the learner."""

    max_restarts: Annotated[int, Field(ge=0)] = 3
    """Deaths of one rollout actor in a row, with no full block between them, that are survived by starting it again."""

    runtime_env: dict[str, JsonValue] = Field(default_factory=dict)
    """What Ray ships to the nodes of an existing cluster (working_dir, pip, env_vars, ...)."""

    @property
    def cpus_of_rank(self) -> float:
        """CPUs that the cluster reserves for a rank with its readers."""
        return self.num_cpus_per_rank + self.num_readers * self.num_cpus_per_reader


REGISTERED = (
    Registration("placement", "local", LocalSettings, "quintain.placements.local:LocalSource"),
    Registration("placement", "threads", ThreadsSettings, "quintain.placements.threads:ThreadsPlacement"),
    Registration("placement", "processes", ProcessesSettings, "quintain.placements.processes:ProcessesPlacement"),
    Registration("placement", "ray", RaySettings, "quintain.placements.ray.placement:RayPlacement"),
)
