"""Communication between the ranks of a run; without overhead for a single process.

Every method is collective: all ranks call the same ones in the same order, or they deadlock. Results are bitwise equal
on all ranks, so that decisions based on them are equal too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
"""Timeout of collective calls during learning."""
PATIENCE_SECONDS = 86_400.0
"""Timeout of waiting for rank 0, which evaluates and writes checkpoints alone; its death is noticed at once."""


class ProcessGroup(Protocol):
    """A rank among `size` learners, with collective operations."""

    rank: int
    size: int

    def average(self, values: torch.Tensor) -> None:
        """Replaces `values` by their mean over all ranks, in place."""

    def sum(self, values: Sequence[float]) -> list[float]:
        """Returns the sums of a few values over all ranks, in double precision."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the values of all ranks, in the order of ranks; all have equal lengths."""

    def collect(self, data: bytes) -> list[bytes]:
        """Returns the data of each rank on rank 0, and an empty list on the others."""

    def broadcast(self, data: bytes) -> bytes:
        """Returns rank 0's data on all ranks; with the long timeout."""

    def share(self, values: torch.Tensor) -> None:
        """Replaces `values` by those of rank 0, in place."""

    def any(self, flag: bool) -> bool:
        """Whether the condition holds on any rank."""

    def all(self, flag: bool) -> bool:
        """Whether the condition holds on every rank."""

    def barrier(self) -> None:
        """Returns when every rank has called it; with the long timeout."""

    def close(self) -> None:
        """Leaves the group."""


class SingleProcess:
    """The process group of a single learner: all operations are local."""

    rank = 0
    size = 1

    def average(self, values: torch.Tensor) -> None:
        """Does nothing: the mean over one rank."""

    def sum(self, values: Sequence[float]) -> list[float]:
        return list(values)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]

    def collect(self, data: bytes) -> list[bytes]:
        return [data]

    def broadcast(self, data: bytes) -> bytes:
        return data

    def share(self, values: torch.Tensor) -> None:
        """Does nothing: the values are rank 0's."""

    def any(self, flag: bool) -> bool:
        return flag

    def all(self, flag: bool) -> bool:
        return flag

    def barrier(self) -> None:
        """Returns at once."""

    def close(self) -> None:
        """Does nothing: there is no connection."""


class GlooGroup:
    """Several learners, connected by gloo: what is on another device goes through memory of the CPU."""

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Joins the group at `store`, or at MASTER_ADDR and MASTER_PORT."""
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

    def __deepcopy__(self, memo: Any) -> GlooGroup:
        """Returns itself: a copy of a policy is in the same group."""
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
        with _dense_on_cpu(values) as dense, _explained(self.rank):
            self._dist.broadcast(dense, src=0, group=self._patient)

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
        with _dense_on_cpu(values) as dense, _explained(self.rank):
            self._dist.all_reduce(dense, group=self._group)


def joint_moments(
    world: ProcessGroup, count: float, mean: Array | float, squares: Array | float
) -> tuple[float, Array, Array]:
    """Merges the counts, means and sums of squared deviations of all ranks (Chan et al. 1979)."""
    mean, squares = np.atleast_1d(mean), np.atleast_1d(squares)
    # A rank without rows has no mean to speak of.
    total, *sums = world.sum([float(count), *(mean * count if count else np.zeros_like(mean))])
    joint = np.asarray(sums) / total if total else np.zeros_like(mean)
    own = squares + count * np.square(mean - joint) if count else np.zeros_like(squares)
    return total, joint, np.asarray(world.sum(list(own)))


def join_parts(owner: object, world: ProcessGroup) -> None:
    """Gives a process group to everything in an object's attributes that has one: optimizers and normalizers.

    Lists, mappings and modules are searched, so that no optimizer of a part goes on averaging with itself.
    """
    waiting = list(vars(owner).values())
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping | list | tuple):
            waiting.extend(part.values() if isinstance(part, Mapping) else part)
            continue
        for each in part.modules() if isinstance(part, torch.nn.Module) else (part,):
            if hasattr(each, "world"):
                each.world = world


@contextmanager
def _dense_on_cpu(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields what gloo takes: the values themselves, or a copy from which they are written back."""
    dense = values.cpu().contiguous()
    yield dense
    if dense is not values:
        values.copy_(dense)


@contextmanager
def _explained(rank: int) -> Iterator[None]:
    """Converts gloo's errors about lost or silent ranks to a message for users."""
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
