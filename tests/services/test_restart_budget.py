from __future__ import annotations

import itertools
from typing import Any

from quintain.services.processes.restart_budget import Ages, RestartBudget


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def budget(max_restarts: int = 3, max_in_a_row: int = 100, **more: Any) -> RestartBudget[str]:
    return RestartBudget(max_restarts=max_restarts, window_steps=60, max_in_a_row=max_in_a_row, **more)


def test_failures_in_a_window_of_steps_are_counted_and_the_first_of_them_is_named() -> None:
    tried = budget()
    assert tried.fail("a", "one", 0) is None
    assert tried.fail("a", "two", 59) is None
    assert tried.used("a") == 2
    # The first is out of the window by now, so this is the second in it, and the next the third.
    assert tried.fail("a", "three", 60) is None
    spent = tried.fail("a", "four", 60)
    assert spent is not None
    assert spent.reason == "failed 3 times in 60 steps (run.env_workers.max_restarts)"
    assert spent.first == "two"


def test_how_fast_the_steps_are_does_not_matter() -> None:
    slow, fast = (budget(clock=clock) for clock in (itertools.count(0.0, 1000.0).__next__, lambda: 0.0))
    for tried in (slow, fast):
        assert [tried.fail("a", "one", step) is None for step in (0, 100, 200, 300, 310, 320)] == [True] * 5 + [False]


def test_a_window_by_the_clock_is_still_there_for_those_who_ask() -> None:
    clock = Clock()
    tried = budget(window_seconds=60.0, clock=clock)
    assert tried.fail("a", "one", 0) is None
    clock.now = 59.0
    assert tried.fail("a", "two", 100_000) is None
    clock.now = 60.5
    assert tried.fail("a", "three", 200_000) is None
    spent = tried.fail("a", "four", 300_000)
    assert spent is not None
    assert spent.reason == "failed 3 times in 60 s (run.env_workers.max_restarts)"
    assert spent.first == "two"


def test_failures_that_count_are_put_back_by_how_long_ago_they_were() -> None:
    tried, restored = budget(), budget()
    assert tried.ages("a", 0) is None
    tried.fail("a", "one", 100)
    tried.succeed("a")
    tried.fail("a", "two", 130)
    saved = tried.ages("a", 140)
    assert saved == Ages([40, 10], 1)
    # In 20 steps the first leaves the window of 60; the second has never been followed by a success.
    assert tried.ages("a", 160) == Ages([30], 1)
    restored.restore("a", saved, 7)
    assert restored.shaky == {"a"}
    # At step 27 the first was 60 steps ago, so one step before it the third is one too many.
    spent = restored.fail("a", "three", 26)
    assert spent is not None
    assert spent.first == "three"
    restored.restore("a", saved, 7)
    assert restored.fail("a", "three", 27) is None
    restored.restore("a", None, 27)
    assert (restored.used("a"), restored.shaky) == (0, set())


def test_failures_in_a_row_are_counted_until_a_success() -> None:
    tried = budget(max_restarts=100, max_in_a_row=3)
    assert tried.fail("a", "one", 0) is None
    assert tried.fail("a", "two", 0) is None
    assert tried.shaky == {"a"}
    tried.succeed("a")
    assert tried.shaky == set()
    assert tried.fail("a", "three", 0) is None
    assert tried.fail("a", "four", 0) is None
    spent = tried.fail("a", "five", 0)
    assert spent is not None
    assert (spent.reason, spent.first) == ("failed 3 times in a row (run.env_workers.max_failures_in_a_row)", "three")


def test_the_third_try_and_later_ones_wait_longer_and_longer() -> None:
    tried = budget(max_restarts=100)
    waits = []
    for failure in ("one", "two", "three", "four", "five", "six", "seven"):
        tried.fail("a", failure, 0)
        waits.append(tried.back_off_seconds(["a", "b"]))
    # Twice as long each time, from 0.1 s to at most 1 s; the first failure is mended at once.
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert tried.back_off_seconds(["b"]) == 0.0
    tried.succeed("a")
    assert tried.back_off_seconds(["a"]) == 0.0


def test_a_team_that_is_down_for_too_long_is_given_up_with_its_first_failure() -> None:
    clock = Clock()
    tried = budget(max_restarts=100, max_down_seconds=120.0, clock=clock)
    assert tried.watch_team("a", "one") is None
    clock.now = 100.0
    # One of the team works again, and the time begins anew.
    assert tried.watch_team("a", None) is None
    assert tried.watch_team("a", "two") is None
    clock.now = 219.0
    assert tried.watch_team("a", "three") is None
    assert tried.watch_team("b", "four") is None
    clock.now = 221.0
    spent = tried.watch_team("a", "five")
    assert spent is not None
    assert (spent.reason, spent.first) == ("did not work for 121 s (run.env_workers.max_down_seconds)", "two")


def test_each_member_has_a_budget_of_its_own() -> None:
    tried = budget(max_restarts=2)
    assert tried.fail("a", "one", 0) is None
    assert tried.fail("b", "two", 0) is None
    assert tried.fail("b", "three", 0) is not None
    tried.succeed("c")
    assert tried.used("c") == 0
