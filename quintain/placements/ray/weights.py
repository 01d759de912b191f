"""Weights in the object store: put once for each version, and read by all actors.

Blocks of lanes and agents have weights of their own, which go with their order. Collectors of fragments take the newest
between two acts: those are announced to all actors at once, and the learner does not wait until they have copied them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from quintain.placements.commands import Lend
from quintain.placements.ray import api
from quintain.placements.ray.worker import RolloutWorker
from quintain.placements.share import Share
from quintain.placements.snapshots import Label, PublishedWeights, Snapshot
from quintain.placements.wire import as_arrays
from quintain.policies.base import Policy


class PutWeights:
    """The weights of lent blocks in the object store, put once for each version."""

    def __init__(self, shares: Mapping[str, Share]) -> None:
        self.shares = shares
        self._put: dict[str, list[tuple[int, int, api.Reference]]] = {name: [] for name in shares}
        """Number of the snapshot, version and reference, the newest last."""

    def of(self, lend: Lend) -> api.Reference:
        """Returns the reference to a block's weights; None where collectors take the newest."""
        share, put = self.shares[lend.behavior], self._put[lend.behavior]
        snapshot, number = share.snapshots[lend.block], share.taken[lend.block]
        if not snapshot:
            return None
        # All collectors of a block ask for the same snapshot.
        known = next((reference for taken, _, reference in put if taken == number), None)
        if known is None:
            known = next((old for _, version, old in reversed(put) if version == lend.version), None)
            # A policy may change without a new version, such as its statistics of observations.
            if known is None or not _is_equal(api.get(known), snapshot):
                known = api.put(as_arrays(snapshot))
            put.append((number, lend.version, known))
            # As many versions are lent at a time as there are blocks.
            del put[: -1 - len(share.blocks)]
        return known


def _is_equal(arrays: Mapping[str, np.ndarray], snapshot: Snapshot) -> bool:
    return all(np.array_equal(arrays[name], value.numpy()) for name, value in snapshot.items())


class PublishedToActors(PublishedWeights):
    """The newest weights, put into the object store and announced to every actor."""

    def __init__(self, behavior: str, workers: Sequence[RolloutWorker]) -> None:
        self.behavior = behavior
        self.workers = workers
        self.newest_put: tuple[Label, api.Reference] | None = None
        self._pending: list[api.Reference] = []
        """Announcements that actors may not have read yet."""

    def publish(self, label: Label, policy: Policy) -> None:
        """Announces weights; waits for those before, so that at most two versions are in the object store."""
        self.wait()
        is_new = self.newest_put is None or self.newest_put[0].session != label.session
        self.newest_put = label, api.put({name: value.cpu().numpy() for name, value in policy.state_dict().items()})
        self._pending = [self._announce(worker) for worker in self.workers]
        if is_new:
            # Nothing may be collected before, or for the session before.
            self.wait()

    def wait(self) -> None:
        """Waits until all actors have the newest weights; one that died gets them when it is started again."""
        pending, self._pending = self._pending, []
        for each in pending:
            with suppress(api.Lost):
                api.get(each)

    def announce_to(self, worker: RolloutWorker) -> None:
        """Gives an actor that was started again the newest weights."""
        if self.newest_put is not None:
            api.get(self._announce(worker))

    def _announce(self, worker: RolloutWorker) -> api.Reference:
        assert self.newest_put is not None, "there are weights to announce"
        label, weights = self.newest_put
        return worker.control("publish", self.behavior, list(label), weights)
