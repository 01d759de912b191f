"""The other learners of this run, if any: what ranks have to agree on, free of cost when there is one.

Every method is a meeting: all ranks call the same ones in the same order, or they wait for each other in vain. What
comes back is the same on all ranks to the last bit, so that decisions taken from it are the same too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from quintain.errors import RankError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

    from quintain.typing import Array

TIMEOUT_SECONDS = 120.0
"""How long ranks wait for each other while they learn."""
PATIENCE_SECONDS = 86_400.0
"""How long they wait for rank 0, which evaluates and writes checkpoints alone; its death is noticed at once."""


class World(Protocol):
    """Knows its rank among `size` learners and agrees with the others."""

    rank: int
    size: int

    def average(self, values: torch.Tensor) -> None:
        """Replaces `values` by their mean over all ranks, in place."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the sums of a few numbers over all ranks, in double precision."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns what each rank gave, in the order of ranks; all give equally many numbers."""

    def collect(self, data: bytes) -> list[bytes]:
        """Returns what each rank gave to rank 0, and nothing to the others."""

    def broadcast(self, data: bytes) -> bytes:
        """Returns what rank 0 gave to all ranks; waits for it patiently."""

    def share(self, values: torch.Tensor) -> None:
        """Replaces `values` by those of rank 0, in place."""

    def any(self, flag: bool) -> bool:
        """Says whether it is so on any rank."""

    def all(self, flag: bool) -> bool:
        """Says whether it is so on every rank."""

    def barrier(self) -> None:
        """Returns when every rank has come here; waits patiently."""

    def close(self) -> None:
        """Leaves the others."""


class Alone:
    """The world of a single learner: its word is the last."""

    rank = 0
    size = 1

    def average(self, values: torch.Tensor) -> None:
        """Leaves `values` as they are: the mean over one rank."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def collect(self, data: bytes) -> list[bytes]:
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        return data

    def share(self, values: torch.Tensor) -> None:
        """Leaves `values` as they are: they are those of rank 0."""

    def any(self, flag: bool) -> bool:
        return flag

    def all(self, flag: bool) -> bool:
        return flag

    def barrier(self) -> None:
        """Returns at once: everyone is here."""

    def close(self) -> None:
        """Leaves nobody."""


class Gloo:
    """Several learners over gloo, on the CPU."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Meets the others at `store`, or where MASTER_ADDR and MASTER_PORT say."""
        import torch.distributed as dist

        self.rank = rank
        self.size = size
        self._dist = dist
        self._owns_default = not dist.is_initialized()
        timeout = timedelta(seconds=timeout_seconds)
        with _explained(rank):
            if self._owns_default:
                dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
            self._group = dist.new_group(backend="gloo", timeout=timeout)
            self._patient = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_SECONDS))

    def __deepcopy__(self, memo: Any) -> Gloo:
        """Returns itself: a copy of a policy that knows its world is still in the same one."""
        return self

    def average(self, values: torch.Tensor) -> None:
        self._add(values)
        values.div_(self.size)

    def sum(self, values: Sequence[float]) -> list[float]:
        total = torch.tensor(list(values), dtype=torch.float64)
        self._add(total)
        found: list[float] = total.tolist()
        return found

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        table = torch.zeros((self.size, len(values)), dtype=torch.float64)
        table[self.rank] = torch.tensor(list(values), dtype=torch.float64)
        self._add(table)
        found: list[list[float]] = table.tolist()
        return found

    def collect(self, data: bytes) -> list[bytes]:
        sizes = [int(size) for [size] in self.gather([len(data)])]
        with _explained(self.rank):
            if self.rank != 0:
                self._dist.send(_bytes_tensor(data), dst=0, group=self._patient)
                return []
            received = [data]
            for rank in range(1, self.size):
                buffer = torch.empty(sizes[rank], dtype=torch.uint8)
                self._dist.recv(buffer, src=rank, group=self._patient)
                received.append(buffer.numpy().tobytes())
        return received

    def broadcast(self, data: bytes) -> bytes:
        size = torch.tensor([len(data)])
        with _explained(self.rank):
            self._dist.broadcast(size, src=0, group=self._patient)
            buffer = _bytes_tensor(data) if self.rank == 0 else torch.empty(int(size), dtype=torch.uint8)
            self._dist.broadcast(buffer, src=0, group=self._patient)
        return buffer.numpy().tobytes()

    def share(self, values: torch.Tensor) -> None:
        with _explained(self.rank):
            self._dist.broadcast(values, src=0, group=self._patient)

    def any(self, flag: bool) -> bool:
        return self.sum([float(flag)])[0] > 0

    def all(self, flag: bool) -> bool:
        return self.sum([float(flag)])[0] == self.size

    def barrier(self) -> None:
        with _explained(self.rank):
            self._dist.barrier(group=self._patient)

    def close(self) -> None:
        if self._owns_default and self._dist.is_initialized():
            self._dist.destroy_process_group()

    def _add(self, values: torch.Tensor) -> None:
        with _explained(self.rank):
            self._dist.all_reduce(values, group=self._group)


def joint_moments(
    world: World, count: float, mean: Array | float, squares: Array | float
) -> tuple[float, Array, Array]:
    """Merges each rank's count, means and sums of squared deviations into those of all rows (Chan et al. 1979)."""
    mean, squares = np.atleast_1d(mean), np.atleast_1d(squares)
    # A rank without rows has no mean to speak of.
    total, *sums = world.sum([float(count), *(mean * count if count else np.zeros_like(mean))])
    joint = np.asarray(sums) / total if total else np.zeros_like(mean)
    own = squares + count * np.square(mean - joint) if count else np.zeros_like(squares)
    return total, joint, np.asarray(world.sum(list(own)))


@contextmanager
def _explained(rank: int) -> Iterator[None]:
    """Turns what gloo says of a lost or silent rank into a sentence."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0].rpartition("] ")[2][:120]
        what = "did not answer in time" if "imed out" in str(error) else "ended"
        raise RankError(
            f"rank {rank} waited for another rank, which {what} ({said}). What that rank said is the cause",
            notes=("help: continue from the last checkpoint with: quintain resume",),
        ) from error


def _bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())
