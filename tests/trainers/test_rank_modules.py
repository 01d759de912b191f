"""Modules that ranks train together: begun with equal weights, gradients and running statistics averaged."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import torch
from torch import nn

from quintain.core.process_group import GlooGroup, SingleProcess
from quintain.trainers.rank_modules import RankModules
from tests.ranks.party import Arrays, on_ranks


def learn(world: GlooGroup) -> Arrays:
    module = nn.Linear(2, 1)
    # Ranks begin apart; the weights are no dense block of memory.
    module.weight = nn.Parameter(torch.full((2, 1), float(world.rank + 1)).t())
    # Two numbers that no rank can average without rounding, one that only rank 1 learns, one that none does.
    module.register_buffer("table", torch.tensor([0.1, 1.0 / 3.0]))
    module.register_buffer("mean", torch.zeros(1))
    module.register_buffer("count", torch.tensor(world.rank + 7))
    module.extra = nn.Parameter(torch.tensor([1.0]))
    module.idle = nn.Parameter(torch.tensor([1.0]))
    modules = RankModules(world)
    modules.add(module)
    modules.add(module)
    found: Arrays = {"weight": module.weight.detach().clone().numpy(), "count": module.count.numpy().copy()}
    x = torch.tensor([1.0, 2.0]) * (world.rank + 1)
    loss = module(x).sum() + (3.0 * module.extra.sum() if world.rank else 0.0)
    loss.backward()
    found["first"] = module.weight.grad.clone().numpy()  # type: ignore[union-attr]
    found["extra"] = module.extra.grad.clone().numpy()  # type: ignore[union-attr]
    found["idle"] = torch.tensor(module.idle.grad is None).numpy()
    module.zero_grad(set_to_none=True)
    with modules.no_sync():
        module(x).sum().backward()
        found["alone"] = module.weight.grad.clone().numpy()  # type: ignore[union-attr]
    module(10.0 * x).sum().backward()
    found["both"] = module.weight.grad.clone().numpy()  # type: ignore[union-attr]
    module.mean.fill_(4.0 * world.rank)  # type: ignore[operator]
    modules.average_buffers()
    found |= {name: getattr(module, name).numpy() for name in ("mean", "table")}
    found["other"] = torch.tensor(modules.diverged_rank() or 0).numpy()
    if world.rank == world.size - 1:
        with torch.no_grad():
            module.bias += 1.0
    found["drifted"] = torch.tensor(modules.diverged_rank() or 0).numpy()
    return found


def test_gradients_and_statistics_of_ranks_are_averaged(tmp_path: Path) -> None:
    ranks = on_ranks(3, tmp_path, learn)
    for found in ranks:
        assert found["weight"].tolist() == [[1.0, 1.0]], "all begin with the weights of rank 0"
        assert found["count"] == 7
        # Inputs are [1, 2], [2, 4] and [3, 6]: the mean gradient of the weights is their mean.
        assert found["first"].tolist() == [[2.0, 4.0]]
        # Ranks 1 and 2 learn it with gradient 3, rank 0 not at all.
        assert found["extra"].tolist() == [2.0]
        assert found["idle"]
        # Accumulated: the mean of 11 times the inputs.
        assert found["both"].tolist() == [[22.0, 44.0]]
        assert found["mean"].tolist() == [4.0]
        assert found["table"].tobytes() == torch.tensor([0.1, 1.0 / 3.0]).numpy().tobytes()
        assert (found["other"], found["drifted"]) == (0, 2)
    assert [found["alone"].tolist() for found in ranks] == [[[1.0, 2.0]], [[2.0, 4.0]], [[3.0, 6.0]]]


def thaw(world: GlooGroup) -> Arrays:
    """One weight is frozen for one backward pass, another pass fails in the middle."""
    module = nn.Linear(1, 1)
    module.large = nn.Parameter(torch.tensor([1e6]))
    module.weight.requires_grad_(False)
    met: list[int] = []
    modules = RankModules(world, met.append)
    modules.add(module)
    x = torch.tensor([float(world.rank + 1)])
    module(x).sum().backward()
    found: Arrays = {"frozen": torch.tensor(module.weight.grad is None).numpy()}
    module.weight.requires_grad_()
    handle = module.bias.register_hook(lambda gradient: 1 // 0)
    with contextlib.suppress(ZeroDivisionError):
        module(x).sum().backward()
    handle.remove()
    module.zero_grad(set_to_none=True)
    module(x).sum().backward()
    found["thawed"] = module.weight.grad.clone().numpy()  # type: ignore[union-attr]
    found["met"] = torch.tensor(met).numpy()
    with torch.no_grad():
        found["equal"] = torch.tensor(modules.diverged_rank() or 0).numpy()
        module.bias += 1e-4 * world.rank
        found["drifted"] = torch.tensor(modules.diverged_rank() or 0).numpy()
        module.bias.fill_(math.nan if world.rank else 1.0)
        found["lost"] = torch.tensor(modules.diverged_rank() or 0).numpy()
        module.bias.fill_(math.nan)
        found["all lost"] = torch.tensor(modules.diverged_rank() or 0).numpy()
    return found


def test_what_is_frozen_at_first_is_averaged_later_and_a_pass_that_failed_leaves_nothing(tmp_path: Path) -> None:
    for found in on_ranks(2, tmp_path, thaw):
        assert found["frozen"]
        # Of inputs 1 and 2.
        assert found["thawed"].tolist() == [[1.5]]
        # Two values and two words on whether they are there; the third with its own joins them.
        assert found["met"].tolist() == [4, 6]
        # A small weight is not lost beside a large one, nor what is no number on one rank.
        assert [found[name].item() for name in ("equal", "drifted", "lost", "all lost")] == [0, 1, 1, 0]


def test_one_rank_has_its_gradients_untouched() -> None:
    module = nn.Linear(1, 1)
    modules = RankModules(SingleProcess())
    modules.add(module)
    assert modules.parameters == []
    with modules.no_sync():
        module(torch.ones(1)).backward()
    assert module.weight.grad is not None
