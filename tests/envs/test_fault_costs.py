"""Environments that break cost little: bench/faults.py measures how little, this only sees that it stays so."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "faults.py"


@pytest.fixture
def faults() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_faults", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_thirty_faults_a_minute_leave_most_of_the_throughput(faults: ModuleType) -> None:
    found = faults.compare(rounds=3, seconds=4.0)
    # bench/faults.py finds 0.99 and 0.97; the bounds leave room for what else runs on the machine.
    assert found["raise"]["faults_per_minute"] > 15
    assert found["raise"]["share"] > 0.85
    assert found["kill"]["faults_per_minute"] > 15
    assert found["kill"]["share"] > 0.75
