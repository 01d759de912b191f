"""Where acting happens changes no number: at staleness 0 all placements agree, at 1 and 2 all that can have it."""

from __future__ import annotations

from typing import Any

import pytest

from quintain import Trainer
from tests.composition.combinations import FEW, LANES, STEPS, Combination
from tests.envs.fragile import Fragile
from tests.placements.runs import AHEAD, EITHER, outcome, trained, walk_of

REPLAY: dict[str, Any] = {
    "num_lanes": 2, "seed": 3, "num_steps": 4, "learning_starts": 32, "batch_size": 16, "hidden_sizes": [16],
    "buffer_size": 1000, "writers": [], "events": [],
}  # fmt: skip
SYMMETRIC = [one for one in FEW if one.use_symmetry]


def played(one: Combination, placement: str, max_staleness: int) -> tuple[str, list[float], list[int]]:
    trainer = one.trainer(placement=placement, max_staleness=max_staleness)
    trainer.train(3 * LANES * STEPS)
    found = outcome(trainer)
    trainer.close()
    return found


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("placement", EITHER)
def test_acting_elsewhere_in_turns_gives_the_same_numbers(placement: str, compiled: bool) -> None:
    assert trained(placement, compiled=compiled) == trained("local", compiled=compiled)


@pytest.mark.parametrize("placement", EITHER)
def test_the_copy_that_acts_is_compiled_where_its_original_is(placement: str) -> None:
    """Kernels and torch round differently, so a copy that acted plainly would give itself away."""
    assert trained(placement, compiled=True) != trained("local", compiled=False)


@pytest.mark.parametrize("max_staleness", [0, 1])
@pytest.mark.parametrize("placement", EITHER)
def test_replay_is_filled_from_elsewhere(placement: str, max_staleness: int) -> None:
    """Waiting blocks are added to the memory in their order, each when it is taken."""

    def played(placement: str) -> tuple[str, list[float], list[int]]:
        trainer = Trainer("sac", "Pendulum-v1", **REPLAY, placement=placement, max_staleness=max_staleness)
        trainer.train(160)
        found = outcome(trainer)
        assert trainer.progress.updates > 0
        trainer.close()
        return found

    first = played(placement)
    assert first == played("threads" if max_staleness else "local")


def test_acting_ahead_gives_the_same_numbers_every_time() -> None:
    one, again = trained("threads", 1), trained("threads", 1)
    assert one == again
    assert one != trained("threads", 0)
    assert one != trained("threads", 2)


@pytest.mark.parametrize("max_staleness", [1, 2])
def test_acting_behind_in_the_learners_own_thread_gives_the_numbers_of_threads(max_staleness: int) -> None:
    assert trained("local", max_staleness) == trained("threads", max_staleness)


@pytest.mark.slow
@pytest.mark.parametrize("max_staleness", [1, 2])
def test_acting_ahead_gives_the_same_numbers_in_threads_and_processes(max_staleness: int) -> None:
    assert trained("processes", max_staleness) == trained("threads", max_staleness)


@pytest.mark.slow
@pytest.mark.parametrize("one", FEW, ids=str)
def test_every_kind_of_space_memory_and_algorithm_acts_elsewhere(one: Combination) -> None:
    placements = ("threads",) if one in SYMMETRIC else AHEAD
    local = played(one, "local", 0)
    for placement in placements:
        assert played(one, placement, 0) == local, placement
    first, *others = [played(one, placement, 1) for placement in ("local", *placements)]
    assert all(other == first for other in others)


@pytest.mark.slow
def test_environments_that_break_on_the_same_steps_break_the_same_everywhere() -> None:
    env = walk_of(Fragile, how="raise", chance=0.02)
    budget = {"env_workers.max_restarts": 1000, "env_workers.max_failures_in_a_row": 1000}
    local = trained("local", env=env, **budget)
    for placement in AHEAD:
        assert trained(placement, env=env, **budget) == local
    behind = trained("threads", 1, env=env, **budget)
    assert trained("processes", 1, env=env, **budget) == behind
    assert trained("local", 1, env=env, **budget) == behind


@pytest.mark.slow
@pytest.mark.parametrize("num_collectors", [1, 2])
def test_every_placement_may_have_workers(num_collectors: int) -> None:
    settings = {"num_collectors": num_collectors, "env_workers.num_workers": 2}
    behind = trained("local", 1, num_collectors=num_collectors)
    for placement in ("local", *AHEAD):
        assert trained(placement, 1, **settings) == behind, placement
