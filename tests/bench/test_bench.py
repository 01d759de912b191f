"""What the benchmark runs, keeps and says; the libraries themselves are not run here."""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Bench


def row(peer: str, repetition: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "workload": "ppo_cartpole_8",
        "peer": peer,
        "entry": "gymnasium",
        "threads": 1,
        "repetition": repetition,
        "steps_per_second": rate,
        "steps_per_cpu_second": rate,
        "own_cores": 1.0,
        "foreign_cores": 0.1,
        "peak_megabytes": 300.0,
        "versions": {"torch": "2.0"},
        **more,
    }


def results_of(bench: Bench, path: Path, rows: list[dict[str, Any]]) -> Any:
    results = bench["results"].Results(path / "bench.jsonl")
    for each in rows:
        results.add(each)
    return results


def contestant(bench: Bench, peer: str, entry: str = "gymnasium", threads: int = 1) -> Any:
    return bench["contestants"].Contestant(peer, entry, threads)


def test_every_peer_can_say_what_it_does_without_its_library(bench: Bench) -> None:
    kits = bench["environments"].KITS
    for name in bench["peers"].NAMES:
        peer = import_module(f"peers.{name}")
        assert peer.KIT in kits
        assert all(isinstance(package, str) for package in peer.PACKAGES)
        for work in bench["workloads"].WORKLOADS.values():
            entries = peer.entries(work)
            assert isinstance(entries, tuple)
            assert not entries or callable(getattr(peer, work.kind)), (name, work.name)


def test_everybody_does_the_same_number_of_rows(bench: Bench) -> None:
    for work in bench["workloads"].WORKLOADS.values():
        assert work.minibatch_size * work.ppo.num_minibatches == work.num_envs * work.ppo.num_steps, work.name
        assert bench["peers"].OURS in (work.peers or bench["peers"].NAMES)


def test_close_calls_get_longer_and_more_runs(bench: Bench) -> None:
    works = bench["workloads"].WORKLOADS
    # SAC must be 1.2 x as fast, images 1.15 x: both under 1.3. CartPole must be 2 x and more; an aim does not count.
    assert works["sac_halfcheetah"].effort == works["ppo_images_8"].effort == 2
    assert works["ppo_cartpole_8"].effort == works["ppo_cartpole_64_fastest"].effort == 1
    assert [works[name].repetitions(3) for name in ("sac_halfcheetah", "ppo_cartpole_8", "growth_length")] == [6, 3, 1]


def test_ratios_compare_within_a_repetition(bench: Bench, tmp_path: Path) -> None:
    rows = [row("quintain", 0, 300.0), row("sb3", 0, 100.0), row("quintain", 1, 90.0), row("sb3", 1, 60.0)]
    rows.append(row("quintain", 2, 500.0))
    found = bench["results"].ratios(rows, contestant(bench, "quintain"), contestant(bench, "sb3"))
    # 300 / 100 and 90 / 60; repetition 2 has nobody to compare with.
    assert found == [3.0, 1.5]


def test_runs_beside_others_do_not_count_whoever_they_are_of(bench: Bench) -> None:
    rows = [row("quintain", 0, 1.0, foreign_cores=0.9), row("sb3", 0, 1.0, foreign_cores=0.9), row("sb3", 1, 1.0)]
    rows.append({**row("sb3", 2, 1.0), "error": "broke"})
    assert [(each["peer"], each["repetition"]) for each in bench["results"].quiet(rows)] == [("sb3", 1)]


def test_a_peers_best_way_is_the_one_with_the_best_median(bench: Bench) -> None:
    rows = [row("sb3", i, rate, entry="envpool") for i, rate in enumerate((50.0, 60.0, 70.0))]
    rows += [row("sb3", i, rate) for i, rate in enumerate((10.0, 20.0, 900.0))]
    assert bench["results"].best_of(rows, "sb3") == contestant(bench, "sb3", "envpool")
    assert bench["results"].best_of(rows, "sbx") is None


def test_a_goal_is_compared_by_the_time_for_equally_many_steps(bench: Bench) -> None:
    fast, slow = row("quintain", 0, 1.0, total_seconds=4.0), row("sb3", 0, 99.0, total_seconds=12.0)
    found = bench["results"].ratios([fast, slow], contestant(bench, "quintain"), contestant(bench, "sb3"))
    assert found == [pytest.approx(3.0)]


def test_what_was_measured_is_not_measured_again_and_a_torn_line_is(bench: Bench, tmp_path: Path) -> None:
    results_of(bench, tmp_path, [row("quintain", 0, 1.0)])
    with (tmp_path / "bench.jsonl").open("a") as file:
        file.write('{"workload": "ppo_cartp')
    again = bench["results"].Results(tmp_path / "bench.jsonl")
    work = bench["workloads"].WORKLOADS["ppo_cartpole_8"]
    planned = bench["run"]._schedule([work], ["quintain", "sb3"], again, 1)
    assert next(planned) == (work, contestant(bench, "sb3"), 0)
    again.add(row("sb3", 0, 2.0))
    assert len(bench["results"].Results(tmp_path / "bench.jsonl").rows) == 2


def planned(bench: Bench, results: Any, reps: int, outcome: Any) -> list[tuple[str, int]]:
    work = bench["workloads"].WORKLOADS["ppo_cartpole_8"]
    order = []
    for _, who, repetition in bench["run"]._schedule([work], ["quintain", "sb3"], results, reps):
        order.append((who.peer, repetition))
        results.add(outcome(who.peer, repetition))
    return order


def test_repetitions_are_outermost(bench: Bench, tmp_path: Path) -> None:
    order = planned(bench, results_of(bench, tmp_path, []), 2, lambda peer, number: row(peer, number, 1.0))
    assert order == [("quintain", 0), ("sb3", 0), ("quintain", 1), ("sb3", 1)]


def test_a_disturbed_run_is_made_up_for_by_everybody(bench: Bench, tmp_path: Path) -> None:
    def outcome(peer: str, number: int) -> dict[str, Any]:
        return row(peer, number, 1.0, foreign_cores=1.0 if (peer, number) == ("sb3", 0) else 0.0)

    order = planned(bench, results_of(bench, tmp_path, []), 1, outcome)
    assert order == [("quintain", 0), ("sb3", 0), ("quintain", 1), ("sb3", 1)]


def test_who_fails_twice_is_not_asked_again(bench: Bench, tmp_path: Path) -> None:
    def outcome(peer: str, number: int) -> dict[str, Any]:
        return {**row(peer, number, 1.0), **({"error": "no"} if peer == "sb3" else {})}

    order = planned(bench, results_of(bench, tmp_path, []), 4, outcome)
    assert order.count(("sb3", 0)) == order.count(("sb3", 1)) == 1
    assert [number for peer, number in order if peer == "sb3"] == [0, 1]
    assert [number for peer, number in order if peer == "quintain"] == [0, 1, 2, 3]


def test_the_page_says_ratios_claims_and_who_is_left_out(bench: Bench, tmp_path: Path) -> None:
    rows = [row("quintain", 0, 9000.0), row("sb3", 0, 3000.0), row("skrl", 0, 6000.0)]
    rows.append(row("rllib", 0, 1.0, error="it broke", foreign_cores=0.0))
    page = bench["report"].markdown(results_of(bench, tmp_path, rows), {"other": "no network"}, has_chart=False)
    cells = ("sb3 (gymnasium, 1 thread)", "3,000 (3,000 to 3,000)", "3.00 x (3.00 to 3.00)", "3.00 x", "1.00", "0.10")
    assert f"| {' | '.join(cells)} | 300 | 1 |" in page
    claims = [line for line in page.splitlines() if line.startswith("| PPO, CartPole-v1, 8 ")]
    # 3 x sb3 is enough; the hardest peer is skrl with 1.5 x where 2 x are wanted; 6 x sb3 is only an aim.
    assert claims[0].endswith("| sb3 | 3 x | 3.00 x (3.00 to 3.00) | holds |")
    assert claims[1].endswith("| every peer | 2 x | 1.50 x (1.50 to 1.50) (skrl) | **does not hold** |")
    assert claims[2].endswith("| sb3 | aim: 6 x | 3.00 x (3.00 to 3.00) | not reached |")
    assert claims[3].endswith("memory | sb3 | no more | 300 MB to 300 MB | holds |")
    assert "## Not quite the same work" not in page
    assert "- other could not be installed: no network" in page
    assert "- rllib (gymnasium, 1 thread) failed on ppo_cartpole_8: it broke" in page


def test_the_page_says_who_does_other_work(bench: Bench, tmp_path: Path) -> None:
    results = results_of(bench, tmp_path, [row("quintain", 0, 9000.0), row("rlox", 0, 3000.0)])
    page = bench["report"].markdown(results, {}, has_chart=False)
    assert "- rlox steps a CartPole of its own" in page
    assert "- sbx" not in page.partition("## Versions")[0]


def test_growth_is_judged(bench: Bench, tmp_path: Path) -> None:
    rows = [
        row("quintain", 0, rate, workload=f"growth_lanes_{lanes}")
        for lanes, rate in ((1, 100.0), (8, 500.0), (64, 400.0))
    ]
    rows.append(row("quintain", 0, 1.0, workload="growth_length", parts=[100.0, 90.0, 100.0, 96.0, 99.0, 60.0]))
    page = bench["report"].markdown(results_of(bench, tmp_path, rows), {}, has_chart=False)
    assert "1 lanes 10000.0 µs, 8 lanes 2000.0 µs, 64 lanes 2500.0 µs" in page
    assert "It must fall with every step: **does not hold**." in page
    # Medians of 100, 90, 100 and of 96, 99, 60.
    assert "The slowest has 60% of the fastest; the second half has 96% of the first: holds." in page


def test_memory_is_compared_on_the_same_environments(bench: Bench, tmp_path: Path) -> None:
    work = "ppo_halfcheetah_8_fastest"
    rows = [
        row("quintain", 0, 9.0, workload=work, entry="envpool+threads", peak_megabytes=400.0),
        row("sb3", 0, 3.0, workload=work, entry="gymnasium", peak_megabytes=300.0),
        row("sb3", 0, 2.0, workload=work, entry="envpool", peak_megabytes=500.0),
    ]
    page = bench["report"].markdown(results_of(bench, tmp_path, rows), {}, has_chart=False)
    assert "| 400 MB to 500 MB | holds |" in page
    page = bench["report"].markdown(results_of(bench, tmp_path / "other", rows[:2]), {}, has_chart=False)
    assert "| 400 MB to 300 MB | **does not hold** |" in page


def test_a_chart_is_drawn_where_there_is_something_to_draw(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert not bench["chart"].draw(results_of(bench, tmp_path, []), tmp_path / "none.png")
    rows = [row("quintain", 0, 9000.0), row("sb3", 0, 3000.0)]
    results = results_of(bench, tmp_path, rows)
    assert bench["chart"].factors(results, "ppo_cartpole_8") == {"sb3": [3.0]}
    assert bench["chart"].draw(results, tmp_path / "some.png")
    assert (tmp_path / "some.png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_that_hangs_is_ended_with_its_children(bench: Bench, tmp_path: Path) -> None:
    told = tmp_path / "pid"
    program = (
        "import subprocess, sys, pathlib, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid)); time.sleep(600)"
    )
    _, error, code = bench["run"].run_limited([sys.executable, "-c", program], dict(os.environ), 5.0)
    assert error == "no result after 5 s"
    assert code == -9
    deadline = time.monotonic() + 30
    while _is_alive(int(told.read_text())):
        assert time.monotonic() < deadline


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_kit_that_failed_is_remembered(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments = bench["environments"]
    monkeypatch.setenv("QUINTAIN_BENCH_CACHE", str(tmp_path))
    kit = environments.KITS["rlox"]
    record = {"requirements": [*kit.constraints, *kit.requirements], "failure": "no wheel"}
    (tmp_path / "rlox").mkdir()
    (tmp_path / "rlox" / "kit.json").write_text(json.dumps(record))
    with pytest.raises(environments.CannotInstall, match="no wheel"):
        environments.interpreter("rlox")
    assert environments.failures() == {**environments.UNAVAILABLE, "rlox": "no wheel"}
    (tmp_path / "rlox" / "kit.json").write_text(json.dumps({**record, "failure": None}))
    assert environments.interpreter("rlox") == tmp_path / "rlox" / "bin" / "python"
    assert environments.failures() == environments.UNAVAILABLE


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"QUINTAIN_BENCH_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/quintain-bench"),
        ({"HOME": "/c"}, "/c/.cache/quintain-bench"),
    ],
)
def test_where_the_kits_are(
    bench: Bench, variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("QUINTAIN_BENCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bench["environments"].cache() == Path(expected)


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["ppo_cartpole_8", "step_io_64"])
def test_quintain_is_measured_in_a_process_of_its_own(bench: Bench, workload: str) -> None:
    work = bench["workloads"].WORKLOADS[workload]
    measured = bench["run"].measure(Path(sys.executable), work, contestant(bench, "quintain"), 0, 0.05)
    assert "error" not in measured, measured
    assert measured["steps_per_second"] > 0
    assert measured["peak_megabytes"] > 10
    assert measured["versions"]["torch"]
