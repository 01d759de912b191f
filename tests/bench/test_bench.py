"""The benchmark's arithmetic, by hand; the libraries themselves are not run here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

BENCH = Path(__file__).parents[2] / "bench"
MODULES = ("environments", "meter", "report", "workloads", "peers")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Imports the benchmark's modules as its scripts do, and forgets them afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield {name: import_module(name) for name in MODULES}
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        del sys.modules[name]


def reading(seconds: float, own: float, machine: float, env_steps: int) -> SimpleNamespace:
    return SimpleNamespace(seconds=seconds, own_cpu_seconds=own, machine_cpu_seconds=machine, env_steps=env_steps)


def test_meter_leaves_out_the_warm_up_and_counts_between_first_and_last(bench) -> None:
    readings = iter([reading(10.0, 1.0, 50.0, 3000), reading(11.0, 1.5, 51.5, 4000), reading(14.0, 3.0, 56.0, 7000)])
    meter = bench["meter"].Meter(seconds=4.0, read=lambda env_steps: next(readings))
    # The first two iterations are warm-up; the third starts the clock; 14 - 10 reaches the 4 seconds.
    assert [meter.tick(steps) for steps in (1000, 2000, 3000, 4000, 7000)] == [False, False, False, False, True]
    # 4000 steps in 4 s and in 2 CPU seconds; the machine was busy for 6 s, 2 of them ours.
    assert meter.result() == {
        "steps_per_second": 1000.0,
        "steps_per_cpu_second": 2000.0,
        "seconds": 4.0,
        "own_cores": 0.5,
        "foreign_cores": 1.0,
    }


def test_ratios_compare_within_a_repetition(bench) -> None:
    runs = [
        {"peer": peer, "repetition": repetition, "steps_per_second": rate}
        for peer, repetition, rate in [("us", 0, 300.0), ("them", 0, 100.0), ("us", 1, 90.0), ("them", 1, 60.0)]
    ]
    runs.append({"peer": "us", "repetition": 2, "steps_per_second": 500.0})
    # 300 / 100, 90 / 60; repetition 2 has nobody to compare with.
    assert bench["report"].ratios(runs, "them", "us", "steps_per_second") == [3.0, 1.5]


def test_page_names_the_ratio_and_who_is_absent(bench) -> None:
    common = {"workload": "ppo_cartpole_8", "own_cores": 1.0, "foreign_cores": 0.25, "versions": {"torch": "2.0"}}
    runs = [
        {**common, "peer": peer, "repetition": 0, "steps_per_second": rate, "steps_per_cpu_second": rate}
        for peer, rate in [("quintain", 9000.0), ("sb3", 3000.0)]
    ]
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11"}
    record = {"date": "2026-01-01", "machine": machine, "absent": {"other": "no network"}, "runs": runs}
    page = bench["report"].markdown(record, "quintain")
    assert "| sb3 | 3,000 (3,000 to 3,000) | 3.00 x (3.00 to 3.00) | 3.00 x | 1.00 | 0.25 | 1 |" in page
    assert "- other: no network" in page


def test_every_peer_and_workload_has_what_the_runner_needs(bench) -> None:
    for path in sorted((BENCH / "peers").glob("[!_]*.py")):
        peer = import_module(f"peers.{path.stem}")
        assert callable(peer.train)
        assert isinstance(peer.REQUIREMENTS, tuple)
        assert isinstance(peer.PACKAGES, tuple)
    for path in sorted((BENCH / "workloads").glob("[!_]*.py")):
        work = bench["workloads"].find(path.stem)
        assert work.num_minibatches * work.minibatch_size == work.num_envs * work.num_steps


def test_a_peer_without_requirements_runs_in_this_interpreter(bench) -> None:
    assert bench["environments"].interpreter("quintain", ()) == Path(sys.executable)
