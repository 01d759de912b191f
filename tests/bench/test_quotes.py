"""The table in the README that is written from the benchmark's record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.conftest import BENCH, Bench
from tests.bench.test_bench import results_of, row

RECORD = BENCH.parent / "docs" / "results" / "bench.jsonl"


def test_the_readme_quotes_the_record(bench: Bench) -> None:
    quotes = bench["quotes"]
    page = quotes.README.read_text()
    assert page == quotes.with_table(page, quotes.table(bench["results"].Results(RECORD)))


def test_a_quote_says_version_threads_cores_rounds_and_commit(bench: Bench, tmp_path: Path) -> None:
    def cartpole(peer: str, number: int, rate: float) -> dict[str, Any]:
        about = {"stable-baselines3": "2.9.2"} if peer == "sb3" else {}
        return row(peer, number, rate, versions=about, own_cores=0.99 if peer == "sb3" else 1.26)

    rows = [cartpole(peer, number, rate) for number in range(2) for peer, rate in (("quintain", 30.0), ("sb3", 10.0))]
    lines = bench["quotes"].table(results_of(bench, tmp_path, rows))
    title = "PPO, CartPole-v1, 8 Gymnasium environments"
    cells = "Stable-Baselines3 2.9.2 | 1 | 1.3 and 1.0 | 3.0 x (3.0 to 3.0) | 2, fewer than 5 | abc1234"
    assert lines[2:] == [f"| {title} | {cells} |"]
    rows = [cartpole(peer, number, rate) for number in range(5) for peer, rate in (("quintain", 30.0), ("sb3", 10.0))]
    lines = bench["quotes"].table(results_of(bench, tmp_path / "more", rows))
    assert "| 3.0 x (3.0 to 3.0) | 5 | abc1234 |" in lines[2]


def test_the_table_stands_between_the_marks(bench: Bench) -> None:
    quotes = bench["quotes"]
    page = f"before\n{quotes.BEGIN}\nold\n{quotes.END}\nafter\n"
    written = quotes.with_table(page, ["| a |", "| b |"])
    assert written == f"before\n{quotes.BEGIN}\n\n| a |\n| b |\n\n{quotes.END}\nafter\n"
    assert quotes.with_table(written, ["| a |", "| b |"]) == written


def test_quoted_rows_are_measured_workloads(bench: Bench) -> None:
    for quote in bench["quotes"].QUOTES:
        assert quote.workload in bench["workloads"].WORKLOADS
        assert quote.against in bench["peers"].NAMES


def test_only_quoted_rows_can_be_measured(bench: Bench) -> None:
    names, works = bench["run"]._chosen(bench["peers"].NAMES, [""], is_quoted=True)
    assert names == ["quintain", "sb3"]
    assert [work.name for work in works] == [quote.workload for quote in bench["quotes"].QUOTES]
    assert all(work.repetitions(5) >= work.enough_rounds == 5 for work in works)
    names, works = bench["run"]._chosen(["skrl"], ["sac"], is_quoted=False)
    assert names == ["quintain", "skrl"]
    assert {work.kind for work in works} == {"sac"}
