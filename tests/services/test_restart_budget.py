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


def test_the_third_try_and_later_ones_wait_longer_and_longer() -> None:
    tried = budget(Clock(), max_restarts=100)
    waits = []
    for failure in ("one", "two", "three", "four", "five", "six", "seven"):
        tried.fail("a", failure)
        waits.append(tried.back_off_seconds(["a", "b"]))
    # Twice as long each time, from 0.1 s to at most 1 s; the first failure is mended at once.
    assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    assert tried.back_off_seconds(["b"]) == 0.0
    tried.succeed("a")
    assert tried.back_off_seconds(["a"]) == 0.0


def test_a_team_that_is_down_for_too_long_is_given_up_with_its_first_failure() -> None:
    clock = Clock()
    tried = RestartBudget[str](
        max_restarts=100, window_seconds=60.0, max_in_a_row=100, max_down_seconds=120.0, clock=clock
    )
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
    assert (spent.reason, spent.first) == ("did not work for 121 s", "two")


def test_each_member_has_a_budget_of_its_own() -> None:
    tried = budget(Clock(), max_restarts=2)
    assert tried.fail("a", "one") is None
    assert tried.fail("b", "two") is None
    assert tried.fail("b", "three") is not None
    tried.succeed("c")
    assert tried.used("c") == 0
