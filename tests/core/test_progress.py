"""Progress moves once per cycle, and everything that depends on time is a function of it."""

from __future__ import annotations

import pytest

from quintain.core.progress import Progress


def progress_after(*cycles: int, budget: int = 100) -> Progress:
    progress = Progress(budget)
    for env_steps in cycles:
        progress.close_cycle(env_steps=env_steps, episodes=2)
    return progress


def test_closing_a_cycle_moves_every_counter_at_once() -> None:
    progress = progress_after(30, 20)
    assert (progress.env_steps, progress.previous_env_steps) == (50, 30)
    assert (progress.episodes, progress.updates, progress.version) == (4, 2, 2)


def test_the_fraction_is_what_was_spent_before_this_cycle_and_stays_below_one() -> None:
    assert progress_after().fraction == 0.0
    assert progress_after(25).fraction == 0.25
    assert progress_after(80, 80).fraction == 1.0


def test_stages_go_round_and_count_iterations() -> None:
    progress = Progress(10)
    assert [progress.next_stage(3) for _ in range(6)] == [False, False, True, False, False, True]
    assert (progress.stage, progress.iteration) == (0, 2)


def test_between_cycles_is_before_the_first_stage_and_after_the_last_event() -> None:
    progress = Progress(10)
    assert progress.is_between_cycles
    progress.next_stage(2)
    assert not progress.is_between_cycles
    progress.next_stage(2)
    progress.is_closing = True
    assert not progress.is_between_cycles


@pytest.mark.parametrize(
    ("cycles", "every", "expected"),
    [
        ((9,), 10, False),
        ((10,), 10, True),
        ((9, 1), 10, True),
        ((10, 9), 10, False),
        ((9, 25), 10, True),  # 9 -> 34 passes 10, 20 and 30 and is due once
    ],
)
def test_a_multiple_is_crossed_in_the_cycle_that_reaches_it(cycles: tuple, every: int, expected: bool) -> None:
    assert progress_after(*cycles).crossed(every) is expected


def test_the_budget_is_spent_when_it_is_reached() -> None:
    assert not progress_after(99).is_budget_spent
    assert progress_after(100).is_budget_spent


def test_a_budget_of_updates_is_spent_by_updates_alone() -> None:
    progress = Progress(None, budget_updates=4)
    for _ in range(3):
        progress.close_cycle(env_steps=1_000_000, episodes=0)
    assert (progress.fraction, progress.is_budget_spent) == (0.75, False)
    progress.close_cycle(env_steps=0, episodes=0)
    assert (progress.fraction, progress.is_budget_spent) == (1.0, True)


def test_of_two_budgets_the_first_that_is_spent_ends_the_run() -> None:
    progress = Progress(100, budget_updates=4)
    progress.close_cycle(env_steps=10, episodes=0)
    assert progress.fraction == 0.25
    progress.close_cycle(env_steps=80, episodes=0)
    assert progress.fraction == 0.9
    progress.close_cycle(env_steps=20, episodes=0)
    assert progress.is_budget_spent


def test_a_cycle_that_publishes_nothing_keeps_the_version() -> None:
    progress = progress_after(30)
    progress.close_cycle(env_steps=10, episodes=1, publishes=False)
    assert (progress.version, progress.updates, progress.env_steps) == (1, 2, 40)


def test_a_state_from_before_there_were_budgets_of_updates_is_read() -> None:
    progress = progress_after(30)
    state = progress.state_dict()
    assert "budget_updates" not in state
    restored = Progress(None, budget_updates=7)
    restored.load_state_dict(state)
    assert vars(restored) == vars(progress)


@pytest.mark.parametrize("spoiled", [0, -1, 1.5, "4", 2**60])
def test_a_budget_that_is_no_count_is_refused(spoiled: object) -> None:
    state = {**Progress(None, budget_updates=4).state_dict(), "budget_updates": spoiled}
    with pytest.raises(ValueError, match="budget_updates is"):
        Progress(None).load_state_dict(state)


def test_progress_comes_back_whole() -> None:
    progress = progress_after(30, 20)
    progress.next_stage(4)
    progress.is_closing = True
    restored = Progress(1)
    restored.load_state_dict(progress.state_dict())
    assert vars(restored) == vars(progress)
