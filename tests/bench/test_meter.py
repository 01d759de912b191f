"""The clocks of the benchmark, by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.bench.conftest import Bench


def reading(seconds: float, own: float, machine: float, env_steps: int) -> SimpleNamespace:
    return SimpleNamespace(seconds=seconds, own_cpu_seconds=own, machine_cpu_seconds=machine, env_steps=env_steps)


def test_rates_leave_out_the_warm_up_and_count_between_first_and_last(bench: Bench) -> None:
    readings = iter([reading(10.0, 1.0, 50.0, 3000), reading(14.0, 3.0, 56.0, 7000)])
    now = iter([12.0, 14.0])
    meter = bench["meter"].RateMeter(4.0, read=lambda env_steps: next(readings), clock=lambda: next(now))
    # The first iteration is warm-up, the second starts the clock at 10, and 14 - 10 reaches the 4 seconds.
    assert [meter.tick(steps) for steps in (1000, 3000, 4000, 7000)] == [False, False, False, True]
    # 4000 steps in 4 s and in 2 CPU seconds; the machine was busy for 6 s, 2 of them ours.
    assert meter.result() == {
        "steps_per_second": 1000.0,
        "steps_per_cpu_second": 2000.0,
        "seconds": 4.0,
        "own_cores": 0.5,
        "foreign_cores": 1.0,
    }


def test_a_goal_is_timed_from_the_start_of_the_process_and_all_steps_are_done(bench: Bench) -> None:
    readings = iter([reading(1.0, 0.5, 10.0, 100), reading(5.0, 4.5, 14.0, 400)])
    clock = iter([7.0, 9.0])
    meter = bench["meter"].GoalMeter(475.0, 400, read=lambda env_steps: next(readings), since_start=lambda: next(clock))
    returns = [None, 480.0, 300.0, np.float32(490.0)]  # some libraries keep returns as numbers of numpy
    over = [meter.tick(100 * (i + 1), value) for i, value in enumerate(returns)]
    assert over == [False, False, False, True]
    result = meter.result()
    assert (result["goal_seconds"], result["goal_steps"], result["total_seconds"]) == (7.0, 200, 9.0)
    assert json.loads(json.dumps(result))["best_return"] == 490.0
    assert result["steps_per_second"] == 75.0  # 300 steps in 4 s


def test_parts_are_the_rates_of_equal_shares_of_a_long_run(bench: Bench) -> None:
    clock = iter([float(second) for second in range(100)])
    meter = bench["meter"].PartsMeter(1100, read=lambda steps: reading(next(clock), 0.0, 0.0, steps))
    steps = 0
    while not meter.tick(steps := steps + 100):
        pass
    # One reading a second, from 200 to 1100 steps, at every tenth of 900 that was passed: 100 steps in each second.
    assert meter.result()["parts"] == [100.0] * 9


def test_meters_follow_the_workload(bench: Bench) -> None:
    kinds = {
        name: type(bench["meter"].meter_of(work, 1.0)).__name__ for name, work in bench["workloads"].WORKLOADS.items()
    }
    assert kinds["ppo_cartpole_8"] == "RateMeter"
    assert kinds["solve_cartpole"] == "GoalMeter"
    assert kinds["growth_length"] == "PartsMeter"


def test_a_tree_of_processes_is_found_and_its_time_counted(bench: Bench) -> None:
    processes = bench["processes"]
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert child.pid in processes.tree(os.getpid())
        deadline = time.monotonic() + 30
        while processes.cpu_seconds([child.pid]) < 0.05:
            assert time.monotonic() < deadline
        assert processes.peak_megabytes([child.pid]) > 1
        processes.end(processes.tree(child.pid))
        assert child.wait(timeout=30) == -9
    finally:
        child.kill()
        child.wait()
    processes.end([child.pid])  # nobody is there any more


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not keep processes to cores")
def test_a_process_and_what_it_starts_keep_to_one_core(bench: Bench) -> None:
    ask = "import os; print(len(os.sched_getaffinity(0)), flush=True)"
    start = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ask!r}])"
    code = f"import processes; processes.keep_to_cores(1); {ask}; {start}"
    found = subprocess.run([sys.executable, "-c", code], cwd=bench.folder, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["1", "1"]


def test_this_process_began_before_now(bench: Bench) -> None:
    first = bench["processes"].seconds_since_start()
    assert first > 0
    assert bench["processes"].seconds_since_start() >= first


def test_waiting_for_quiet_ends_with_patience(bench: Bench) -> None:
    # Nothing is ever below nothing.
    assert bench["processes"].wait_until_quiet(0.0, 0.0) >= 0.0


def test_startup_compares_within_a_round(bench: Bench) -> None:
    rounds = [
        {
            "import torch": {"wall": torch, "cpu": 1.0},
            "header": {"wall": 0.5, "cpu": 0.4},
            "first row": {"wall": row, "cpu": 1.5},
        }
        for torch, row in ((2.0, 3.0), (4.0, 5.0), (1.0, 2.0))
    ]
    found = bench["startup"].summarize(rounds)
    assert found["seconds"]["first row"] == {"wall": 3.0, "cpu": 1.5}
    # 3 / 2, 5 / 4 and 2 / 1: the middle one is 1.5.
    assert found["first row / import torch"] == {"wall": 1.5, "cpu": 1.5}
    assert found["rounds"] == 3


def test_the_image_environment_is_sound(bench: Bench) -> None:
    from gymnasium.utils.env_checker import check_env

    env = bench["image_env"].factory(bench["workloads"].IMAGES)()
    check_env(env, skip_render_check=True)
    env.reset(seed=0)
    shown = env.shown
    assert env.step(shown % 4)[1] == 1.0
    assert env.step((env.shown + 1) % 4)[1] == 0.0
