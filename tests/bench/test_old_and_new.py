"""An older commit beside a newer one: ratios by rounds, and what counts as slower or larger."""

from __future__ import annotations

import pytest

from tests.bench.conftest import Bench


def row(side: str, number: int, speed: float, megabytes: float = 100.0) -> dict:
    return {
        "work": "ppo", "side": side, "round": number, "steps_per_cpu_second": speed, "peak_megabytes": megabytes,
        "foreign_cores": 0.0,
    }  # fmt: skip


def rows(ratio: float, memory: float = 1.0) -> list[dict]:
    # The machine is twice as slow in every other round, which both sides feel.
    speeds = [1000.0 if number % 2 else 500.0 for number in range(9)]
    old = [row("old", number, speed) for number, speed in enumerate(speeds)]
    return [*old, *(row("new", number, ratio * speed, 100.0 * memory) for number, speed in enumerate(speeds))]


def test_every_row_is_one_of_the_benchmarks(bench: Bench) -> None:
    for work in bench["old_and_new"].WORKS:
        known = (
            bench["workloads"].WORKLOADS if work.script == "measure.py" else {*bench["agents"].WORKLOADS, "ppo_image"}
        )
        assert work.name.partition(",")[0] in known


def test_a_ratio_is_that_of_one_round(bench: Bench) -> None:
    assert bench["old_and_new"].ratios(rows(0.5), "ppo", "steps_per_cpu_second") == [0.5] * 9


def test_a_median_of_equal_values_is_certain(bench: Bench) -> None:
    intervals = bench["intervals"]
    assert intervals.bootstrap_median([0.9] * 9) == (0.9, 0.9)
    low, high = intervals.bootstrap_median([0.8, 0.9, 1.0, 1.1, 1.2])
    assert (low, high) == (0.8, 1.2)


@pytest.mark.parametrize(("ratio", "memory", "verdicts"), [
    (1.0, 1.0, ["met", "met"]), (0.96, 1.0, ["**not met**", "met"]), (1.0, 1.04, ["met", "**not met**"]),
])  # fmt: skip
def test_the_page_says_what_is_not_met(bench: Bench, ratio: float, memory: float, verdicts: list[str]) -> None:
    page = bench["old_and_new"].as_page(rows(ratio, memory), {"old": "aaa", "new": "bbb"})
    cells = [cell.strip() for cell in page.splitlines()[-1].strip("|").split("|")]
    assert [cells[3], cells[5]] == verdicts
    assert cells[1] == f"{ratio:.3f}"
