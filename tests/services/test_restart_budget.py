from __future__ import annotations

from quintain.services.restart_budget import RestartBudget


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def budget(clock: Clock, max_restarts: int = 3, max_in_a_row: int = 100) -> RestartBudget[str]:
    return RestartBudget(max_restarts=max_restarts, window_seconds=60.0, max_in_a_row=max_in_a_row, clock=clock)


def test_failures_in_a_window_are_counted_and_the_first_of_them_is_named() -> None:
    clock = Clock()
    tried = budget(clock)
    assert tried.fail("a", "one") is None
    clock.now = 59.0
    assert tried.fail("a", "two") is None
    assert tried.used("a") == 2
    clock.now = 60.5
    # The first is out of the window by now, so this is the second in it, and the next the third.
    assert tried.fail("a", "three") is None
    spent = tried.fail("a", "four")
    assert spent is not None
    assert (spent.reason, spent.first) == ("failed 3 times in 60 s", "two")


def test_failures_in_a_row_are_counted_until_a_success() -> None:
    tried = budget(Clock(), max_restarts=100, max_in_a_row=3)
    assert tried.fail("a", "one") is None
    assert tried.fail("a", "two") is None
    assert tried.shaky == {"a"}
    tried.succeed("a")
    assert tried.shaky == set()
    assert tried.fail("a", "three") is None
    assert tried.fail("a", "four") is None
    spent = tried.fail("a", "five")
    assert spent is not None
    assert (spent.reason, spent.first) == ("failed 3 times in a row", "three")


def test_each_member_has_a_budget_of_its_own() -> None:
    tried = budget(Clock(), max_restarts=2)
    assert tried.fail("a", "one") is None
    assert tried.fail("b", "two") is None
    assert tried.fail("b", "three") is not None
    tried.succeed("c")
    assert tried.used("c") == 0
