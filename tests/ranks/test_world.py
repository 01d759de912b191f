"""What ranks agree on is what one rank would have found in all their numbers, and the same on all to the last bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from quintain.core.process_group import GlooGroup, ProcessGroup, SingleProcess, joint_moments
from quintain.errors import RankError
from quintain.trainers.rank_modules import RankModules
from tests.hold import wait_for
from tests.pretended import pretended_device
from tests.ranks.party import Arrays, on_ranks

SIZES = (0, 5, 1)
"""Rows on each of three ranks: one has none."""


def rows_of(rank: int) -> np.ndarray:
    return np.random.default_rng(rank).normal(3.0, 2.0, (SIZES[rank], 2))


def meet(world: ProcessGroup) -> Arrays:
    """Calls everything once, with numbers that differ by rank."""
    # A column: gloo itself takes no tensor with gaps.
    mean = (torch.tensor([[1.0, 0.0], [10.0, 0.0]]) * (world.rank + 1))[:, 0]
    world.average(mean)
    shared = torch.full((), float(world.rank + 7), dtype=torch.float64)
    world.share(shared)
    rows = rows_of(world.rank)
    own = (len(rows), rows.mean(axis=0) if len(rows) else np.zeros(2), ((rows - rows.mean(axis=0)) ** 2).sum(axis=0))
    with np.errstate(all="raise"):
        count, joint, squares = joint_moments(world, *(own if len(rows) else (0, np.zeros(2), np.zeros(2))))
    return {
        "average": mean.numpy(),
        "sum": np.array(world.sum([world.rank, 0.5])),
        "gather": np.array(world.gather([world.rank, world.rank**2])),
        "collect": np.array([data.decode() for data in world.collect(b"x" * world.rank)] or ["nothing"]),
        "broadcast": np.array(world.broadcast(f"from {world.rank}".encode()).decode()),
        "empty": np.array(len(world.broadcast(b""))),
        "share": shared.numpy(),
        "any": np.array([world.any(False), world.any(world.rank == 2), world.any(True)]),
        "all": np.array([world.all(False), world.all(world.rank == 2), world.all(True)]),
        "moments": np.array([count, *joint, *squares]),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*mean of empty slice:RuntimeWarning")
def test_three_ranks_agree(tmp_path: Path) -> None:
    found = on_ranks(3, tmp_path, meet)
    everything = np.concatenate([rows_of(rank) for rank in range(3)])
    for rank, answers in enumerate(found):
        assert answers["average"].tolist() == [2.0, 20.0], "the mean of 1, 2, 3 and of 10, 20, 30"
        assert answers["sum"].tolist() == [3.0, 1.5]
        assert answers["gather"].tolist() == [[0, 0], [1, 1], [2, 4]]
        assert answers["collect"].tolist() == (["", "x", "xx"] if rank == 0 else ["nothing"])
        assert (answers["broadcast"], answers["empty"], answers["share"]) == ("from 0", 0, 7.0)
        assert answers["any"].tolist() == [False, True, True]
        assert answers["all"].tolist() == [False, False, True]
        expected = [6, *everything.mean(axis=0), *(everything.var(axis=0) * 6)]
        np.testing.assert_allclose(answers["moments"], expected, rtol=1e-12)
        assert answers["moments"].tobytes() == found[0]["moments"].tobytes()


def meet_on_a_device(world: ProcessGroup) -> Arrays:
    """Averages and shares tensors of a device, and the gradients of a module there."""
    with pretended_device() as device:
        mean = torch.tensor([1.0, 10.0], device=device) * (world.rank + 1)
        world.average(mean)
        shared = torch.full((2, 2), world.rank + 7.0, device=device).T
        world.share(shared)
        module = torch.nn.Linear(2, 1).to(device)
        ranks = RankModules(world)
        ranks.add(module)
        module(torch.full((1, 2), world.rank + 1.0, device=device)).sum().backward()
        assert ranks.diverged_rank() is None
        assert {mean.device, shared.device, module.weight.grad.device} == {device}  # type: ignore[union-attr]
        return {
            "average": np.array(mean.tolist()),
            "share": np.array(shared.tolist()),
            "gradient": np.array(module.weight.grad.tolist()),  # type: ignore[union-attr]
        }


@pytest.mark.slow
def test_tensors_of_a_device_go_through_memory_of_the_cpu(tmp_path: Path) -> None:
    for found in on_ranks(2, tmp_path, meet_on_a_device):
        assert found["average"].tolist() == [1.5, 15.0], "the mean of 1 and 2, and of 10 and 20"
        assert found["share"].tolist() == [[7.0, 7.0], [7.0, 7.0]]
        assert found["gradient"].tolist() == [[1.5, 1.5]], "the mean of the inputs of both ranks"


def wait_in_vain(world: ProcessGroup, given_up: Path) -> Arrays:
    """Lets rank 1 stay away from a meeting until rank 0 has given up."""
    # The group itself must be formed within this time, also on a busy machine.
    hasty = GlooGroup(world.rank, world.size, timeout_seconds=3.0)
    if world.rank == 1:
        wait_for(given_up.exists)
        return {"said": np.array("")}
    with pytest.raises(RankError) as raised:
        hasty.any(True)
    given_up.touch()
    return {"said": np.array(str(raised.value))}


@pytest.mark.slow
def test_a_rank_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    said = str(on_ranks(2, tmp_path, wait_in_vain, tmp_path / "given up")[0]["said"])
    assert said.startswith("rank 0 waited for another rank, which did not answer in time"), said


def test_alone_one_has_the_last_word() -> None:
    world, numbers = SingleProcess(), torch.tensor([1.0, 2.0])
    world.average(numbers)
    world.share(numbers)
    world.barrier()
    world.close()
    assert numbers.tolist() == [1.0, 2.0]
    assert (world.sum([2.0]), world.gather([2.0]), world.collect(b"a"), world.broadcast(b"b")) == (
        [2.0], [[2.0]], [b"a"], b"b",
    )  # fmt: skip
    assert (world.any(True), world.any(False), world.all(True), world.all(False)) == (True, False, True, False)
