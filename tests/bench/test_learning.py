"""The comparison of learning: its statistics, its tasks, its record and its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import BENCH, Bench

RECORD = BENCH.parent / "docs" / "results" / "learning_beside.jsonl"


@pytest.mark.parametrize(
    ("scores", "mean"),
    [
        # A quarter of ten is 2.5, so two go at each end: (3 + 4 + 5 + 6 + 7 + 8) / 6.
        ([10.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 900.0], 5.5),
        # One of five goes at each end: (2 + 3 + 10) / 3.
        ([3.0, -50.0, 2.0, 99.0, 10.0], 5.0),
        # Three are too few to leave any out.
        ([1.0, 2.0, 6.0], 3.0),
    ],
)
def test_the_interquartile_mean_leaves_a_quarter_out_at_each_end(
    bench: Bench, scores: list[float], mean: float
) -> None:
    assert bench["intervals"].interquartile_mean(scores) == pytest.approx(mean)


def test_the_bootstrap_interval_is_that_of_the_resampled_means(bench: Bench) -> None:
    interval = bench["intervals"].bootstrap_interval
    # Of the four samples of {0, 1} one has the mean 0, two 0.5 and one 1: each end has more than 2.5 %.
    assert interval([0.0, 1.0]) == (0.0, 1.0)
    assert interval([7.0] * 10) == (7.0, 7.0)
    # Nine zeros and a ten: a sample's middle six are all zero unless the ten is drawn at least three times of ten,
    # which has a chance of 7 %. With three its mean is 10 / 6, with four 20 / 6 (chance 1.28 %, less than 2.5 %).
    assert interval([0.0] * 9 + [10.0]) == pytest.approx((0.0, 10 / 6))


def test_the_bootstrap_interval_is_the_same_every_time(bench: Bench) -> None:
    scores = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0, 3.0]
    interval = bench["intervals"].bootstrap_interval
    assert interval(scores) == interval(list(scores))


@pytest.mark.parametrize(
    ("ours", "theirs", "chance"),
    [
        # Of the 20 ways to deal six different scores, one leaves us as far below as this and one as far above.
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 2 / 20),
        ([4.0, 5.0, 6.0], [1.0, 2.0, 3.0], 2 / 20),
        # {1, 2, 3} and {1, 2, 4} are the only hands with at most 7 points; {6, 5, 4} and {6, 5, 3} with at least 14.
        ([1.0, 2.0, 4.0], [3.0, 5.0, 6.0], 4 / 20),
        ([500.0, 500.0, 500.0], [500.0, 500.0, 500.0], 1.0),
    ],
)
def test_the_chance_of_a_difference_counts_deals(
    bench: Bench, ours: list[float], theirs: list[float], chance: float
) -> None:
    assert bench["intervals"].chance_of_difference(ours, theirs) == pytest.approx(chance)


def rows(bench: Bench, task: str, peer: str, *scores: float, **more: Any) -> list[dict[str, Any]]:
    tasks = bench["learning_tasks"]
    numbers = bench["learning"].numbers_of({**tasks.TASKS, **tasks.DEFAULTS}[task], peer)
    about = {"task": task, "peer": peer, "cpu_seconds": 10.0, "numbers": numbers, "commit": "abc1234", **more}
    return [{**about, "seed": seed, "returns": [score - 1.0, score + 1.0]} for seed, score in enumerate(scores)]


def line_of(page: str, title: str) -> str:
    [found] = [line for line in page.partition("## Every seed")[0].splitlines() if line.startswith(f"| {title} |")]
    return found


def test_the_page_says_which_tasks_differ(bench: Bench) -> None:
    low, high, mixed = range(1, 11), range(11, 21), (1, 20, 3, 18, 5, 16, 7, 14, 9, 12)
    page = bench["learning"].markdown(
        [
            *rows(bench, "ppo-cartpole", "quintain", *low),
            *rows(bench, "ppo-cartpole", "sb3", *high),
            *rows(bench, "ppo-acrobot", "quintain", *high),
            *rows(bench, "ppo-acrobot", "sb3", *low),
            *rows(bench, "ppo-pendulum", "quintain", *mixed),
            *rows(bench, "ppo-pendulum", "sb3", *mixed),
        ]
    )
    # The middle six of 1..10 have the mean 5.5, those of 11..20 15.5.
    cartpole = line_of(page, "PPO, CartPole-v1, rl-zoo's settings").split(" | ")
    assert [cell.split()[0] for cell in cartpole[3:5]] == ["5.5", "15.5"]
    assert cartpole[5:7] == ["0.00", "**below**"]
    assert "| above |" in line_of(page, "PPO, Acrobot-v1")
    assert "| 1.00 | not shown to differ |" in line_of(page, "PPO, Pendulum-v1")
    assert "| PPO, Acrobot-v1 | quintain | abc1234 | 11.0, 12.0, 13.0," in page


def test_sides_with_fewer_seeds_than_were_chosen_are_not_compared(bench: Bench) -> None:
    found = rows(bench, "ppo-cartpole", "quintain", *range(9)) + rows(bench, "ppo-cartpole", "sb3", *range(10))
    line = line_of(bench["learning"].markdown(found), "PPO, CartPole-v1, rl-zoo's settings")
    assert "| 9 of 10 seeds were run |" in line
    assert "| not compared: runs are missing |" in line


def test_three_seeds_a_side_are_said_to_show_nothing(bench: Bench) -> None:
    defaults = bench["learning"].OWN_DEFAULTS
    found = rows(bench, "defaults-hopper", "quintain", 1.0, 2.0, 3.0)
    found += rows(bench, "defaults-hopper", "sb3", 1000.0, 2000.0, 3000.0)
    page = bench["learning"].markdown(found, defaults)
    # Of the 20 ways to deal six scores to two sides, this one and its mirror image differ most.
    assert "| 0.10 | 3 seeds can show no difference |" in line_of(page, "Hopper-v5")
    assert "The seeds of Hopper-v5, HalfCheetah-v5, BipedalWalker-v3 are too few" in page
    assert "*p* is at least 0.10 there" in page
    # With five seeds a side, 2 of 252 deals.
    assert bench["intervals"].smallest_chance(5) == pytest.approx(2 / 252)
    assert "too few" not in bench["learning"].markdown([])
    for side in ("quintain", "sb3"):
        assert f"| Hopper-v5 | {side} | abc1234 |" in page


def test_earlier_numbers_are_shown_and_not_pooled(bench: Bench) -> None:
    current = rows(bench, "ppo-cartpole", "quintain", *[5.0] * 10) + rows(bench, "ppo-cartpole", "sb3", *[5.0] * 10)
    old = rows(bench, "ppo-cartpole", "quintain", 100.0, 200.0, numbers="others", commit="def5678")
    # More seeds than were chosen do not count either.
    extra = [{**row, "seed": 10} for row in rows(bench, "ppo-cartpole", "quintain", 700.0)]
    page = bench["learning"].markdown([*old, *current, *extra])
    assert "| 10 | 5.0 (5.0 to 5.0) | 5.0 (5.0 to 5.0) |" in line_of(page, "PPO, CartPole-v1, rl-zoo's settings")
    earlier = page.partition("## Earlier versions")[2]
    assert "| quintain | others | def5678 | 100.0, 200.0 |" in earlier
    assert "| 700.0 |" in earlier
    assert "Earlier versions" not in bench["learning"].markdown(current)


def test_only_missing_runs_are_made(bench: Bench) -> None:
    task = bench["learning_tasks"].TASKS["sac-halfcheetah"]
    found = rows(bench, task.name, "quintain", 1.0, 2.0) + rows(bench, task.name, "sb3", 1.0, 2.0, 3.0)
    found += rows(bench, task.name, "quintain", 1.0, 2.0, 3.0, numbers="others")
    missing = bench["learning"].missing_runs(found, [task], ["quintain", "sb3"])
    assert [(run.seed, run.peer) for run in missing] == [
        (2, "quintain"),
        (3, "quintain"),
        (3, "sb3"),
        (4, "quintain"),
        (4, "sb3"),
    ]


def test_a_run_that_fails_does_not_end_the_others(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learning = bench["learning"]
    record = tmp_path / "record.jsonl"
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho trouble >&2\nexit 3\n")
    python.chmod(0o755)
    run = learning.Run(bench["learning_tasks"].TASKS["ppo-cartpole"], "sb3", 4)
    assert learning.attempt(python, run, record) == "ppo-cartpole sb3 seed 4: trouble"
    assert "failed: trouble" in capsys.readouterr().err
    assert not record.exists()
    python.write_text("""#!/bin/sh\necho 'RESULT {"cpu_seconds": 2.0, "returns": [3.0, 5.0]}'\n""")
    assert learning.attempt(python, run, record) == ""
    [row] = learning.rows_of(record)
    assert (row["seed"], row["numbers"], row["returns"]) == (4, "stable-baselines3==2.9.2", [3.0, 5.0])
    assert row["commit"]


def test_every_task_has_one_algorithm_and_whole_rollouts(bench: Bench) -> None:
    for task in bench["learning_tasks"].TASKS.values():
        assert (task.ppo is None) != (task.sac is None)
        if task.ppo is not None:
            rows_per_rollout = task.num_envs * task.ppo.num_steps
            assert task.ppo.minibatch_size(task.num_envs) * task.ppo.num_minibatches == rows_per_rollout


def test_tasks_of_defaults_set_nothing_and_have_the_seeds_that_were_asked_for(bench: Bench) -> None:
    seeds = {task.env_id: task.num_seeds for task in bench["learning_tasks"].DEFAULTS.values()}
    assert seeds == {
        **dict.fromkeys(("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0"), 10),
        "LunarLander-v3": 5,
        **dict.fromkeys(("BipedalWalker-v3", "HalfCheetah-v5", "Hopper-v5"), 3),
    }
    for task in bench["learning_tasks"].DEFAULTS.values():
        assert task.by_defaults
        assert (task.ppo, task.sac, task.normalize_obs, task.num_envs) == (None, None, False, 1)
    page = bench["learning"].markdown([], bench["learning"].OWN_DEFAULTS)
    assert "| LunarLander-v3 | 400,000 | 5 | 0 of 5 seeds were run | 0 of 5 seeds were run |" in page


def test_slow_tasks_have_five_seeds_and_the_others_ten(bench: Bench) -> None:
    found = bench["learning"].rows_of(RECORD)
    for task in bench["learning_tasks"].TASKS.values():
        cpu = [row["cpu_seconds"] for row in found if (row["task"], row["peer"]) == (task.name, "quintain")]
        assert task.num_seeds == (5 if min(cpu) > 300.0 else 10), task.name


def test_the_record_keeps_every_run_once_with_its_commit(bench: Bench) -> None:
    found = bench["learning"].rows_of(RECORD)
    keys = [(row["task"], row["peer"], row["seed"], row["numbers"]) for row in found]
    assert len(set(keys)) == len(keys)
    assert all(row["commit"] for row in found)
    # Runs that were taken out of the record once, because a task or the first weights changed.
    restored = {json.dumps(row["task"]) for row in found if "note" in row}
    assert restored == {'"ppo-pendulum-normalized"', '"sac-pendulum"', '"sac-halfcheetah"'}
    assert sum("note" in row for row in found) == 12
