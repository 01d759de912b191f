"""Acts in actors of a Ray cluster: the same collectors and commands, with the object store in place of shared memory.

Ray serializes what actors return with pickle: code of this process reads arrays, packed values and JSON-like words out
of it, and nothing else is unpickled by quintain. A cluster must therefore be trusted like the machine itself.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping

import numpy as np

from quintain.data.fields import fields_to_json
from quintain.data.fragments import FragmentBlock
from quintain.envs.hosts.faults import FaultNews, LaneFault
from quintain.placements.ahead import AheadSource, SourceParts
from quintain.placements.fleet import Fleet
from quintain.placements.plan import ActingPlan, Blocks
from quintain.placements.ray import api
from quintain.placements.ray.cluster import Cluster, code_paths_for
from quintain.placements.ray.collector import RayCollector
from quintain.placements.ray.readers import Readers
from quintain.placements.ray.weights import PublishedToActors, PutWeights
from quintain.placements.ray.worker import RolloutWorker
from quintain.placements.remote_collector import WatchedCollector
from quintain.placements.remote_env import RemoteEnv, remote_env
from quintain.placements.settings import RaySettings
from quintain.placements.share import Share
from quintain.placements.snapshots import alignment_of, make_snapshot
from quintain.policies.base import Policy
from quintain.rollouts.source import BehaviorListener


class RaySource(AheadSource):
    """An asynchronous source that may read ahead, and leaves the cluster when it is closed."""

    def __init__(self, parts: SourceParts, placement: RayPlacement, readers: Readers | None = None) -> None:
        super().__init__(parts)
        self.placement = placement
        self.readers = readers
        if readers is not None:
            # Threads would keep the actors of a source that is forgotten.
            weakref.finalize(self, readers.stop)

    def close(self) -> None:
        if self.readers is not None:
            self.readers.close()
        super().close()
        self.placement.leave()


class RayPlacement:
    """Makes the environments in rollout actors, which return their descriptions."""

    def __init__(self, settings: RaySettings, plan: ActingPlan) -> None:
        self.plan = plan
        self.settings = settings
        words, num_collectors = plan.to_json(), plan.num_collectors
        num_actors = min(settings.num_actors or num_collectors, num_collectors)
        cluster = Cluster.join(settings, num_actors * settings.num_cpus_per_actor)
        # Once: when it is closed, when it is forgotten, or with the process.
        self.leave = weakref.finalize(self, cluster.leave)
        self.workers: list[RolloutWorker] = []
        if settings.address is not None and not api.has_authentication():
            _warn(plan, settings.address)
        environment = {name: os.environ[name] for name in plan.pass_environment if name in os.environ}
        try:
            cluster.require_free(num_actors, settings)
            for share in np.array_split(np.arange(num_collectors), num_actors):
                plan_words = {**words, **code_paths_for(settings), "environment": environment}
                self.workers.append(RolloutWorker(cluster, plan_words, share.tolist(), settings))
            self.env = remote_env([env for worker in self.workers for env in worker.describe_envs()])
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        for worker in self.workers:
            worker.close()
        self.leave()

    def build_source(
        self, policies: Mapping[str, Policy], on_episodes: BehaviorListener, *, starts_fresh: bool
    ) -> tuple[AheadSource, Blocks]:
        plan, num_lanes = self.plan, self.env.num_lanes if isinstance(self.env, RemoteEnv) else 0
        words = {
            "starts_fresh": starts_fresh,
            "alignment": {name: alignment_of(policy) for name, policy in policies.items()},
            "fields": {name: fields_to_json(each) for name, each in plan.fields.items()},
            "num_lanes": num_lanes,
        }
        try:
            for worker in self.workers:
                worker.build(words)
        except BaseException:
            self._end()
            raise
        blocks = plan.make_blocks(num_lanes, policies)
        shares = {
            name: Share(
                name,
                policy,
                blocks[name],
                [{} if plan.takes_newest else make_snapshot(policy, "cpu") for _ in blocks[name]],
                PublishedToActors(name, self.workers) if plan.takes_newest else None,
            )
            for name, policy in policies.items()
        }
        weights = PutWeights(shares)
        streams = not api.is_client()
        collectors, remotes, parts = [], [], []
        for worker in self.workers:
            for number in worker.collectors:
                parts.append(plan.parts_of(blocks, policies, number))
                mine = RayCollector(
                    worker, number, self.env, parts[-1], weights, sends_blocks=plan.has_agents, streams=streams
                )
                collectors.append(mine)
                remotes.append(WatchedCollector(mine, plan.patience_seconds))
        remote = remotes[0] if len(remotes) == 1 else Fleet(self.env, shares, remotes, parts)
        readers = None
        if self.settings.num_readers and streams:
            block = next(iter(blocks.values()))[0]
            per_batch = block.num_lanes if isinstance(block, FragmentBlock) else len(collectors)
            readers = Readers(self.settings.num_readers, collectors, self.settings.prefetch_batches * per_batch)
        return RaySource(SourceParts(remote, shares, plan.hosting.faults, on_episodes), self, readers), blocks


def _warn(plan: ActingPlan, address: str) -> None:
    """Reports a cluster that lets in every process that reaches it; told when the run can be heard."""
    line = (
        f"warning[W0541]: the Ray cluster at {address} has no authentication: every process that reaches it can run "
        f"code there, and here. Start it with RAY_AUTH_MODE=token, and see: quintain doctor --ray"
    )
    fault = LaneFault((), "connect", "the Ray cluster has no authentication", "", warning="W0541")
    plan.hosting.faults.adopt(FaultNews(((fault, line),)))
