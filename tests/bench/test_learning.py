"""The comparison of learning: its test of significance, its tasks and its page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bench.conftest import Bench


@pytest.mark.parametrize(
    ("ours", "theirs", "chance"),
    [
        # Of the 20 ways to deal six different scores, one leaves us as far below as this.
        ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 1 / 20),
        ([4.0, 5.0, 6.0], [1.0, 2.0, 3.0], 1.0),
        # {1, 2, 3} and {1, 2, 4} are the only hands with at most 7 points.
        ([1.0, 2.0, 4.0], [3.0, 5.0, 6.0], 2 / 20),
        ([500.0, 500.0, 500.0], [500.0, 500.0, 500.0], 1.0),
    ],
)
def test_the_chance_of_being_below_counts_deals(
    bench: Bench, ours: list[float], theirs: list[float], chance: float
) -> None:
    assert bench["learning"].chance_of_being_below(ours, theirs) == pytest.approx(chance)


def rows(task: str, peer: str, *scores: float) -> list[dict[str, Any]]:
    about = {"task": task, "peer": peer, "cpu_seconds": 10.0}
    return [{**about, "seed": seed, "returns": [score, score]} for seed, score in enumerate(scores)]


def test_the_page_says_which_tasks_are_below(bench: Bench) -> None:
    page = bench["learning"].markdown(
        rows("ppo-cartpole", "quintain", 1.0, 2.0, 3.0)
        + rows("ppo-cartpole", "sb3", 4.0, 5.0, 6.0)
        + rows("ppo-acrobot", "quintain", -80.0, -90.0, -85.0)
        + rows("ppo-acrobot", "sb3", -82.0, -91.0, -84.0)
        + rows("sac-pendulum", "sb3", -150.0)
    )
    [cartpole] = [line for line in page.splitlines() if "CartPole" in line]
    [acrobot] = [line for line in page.splitlines() if "Acrobot" in line]
    assert "0.05: below" in cartpole
    assert "2.0 ± 1.0 (1.0, 2.0, 3.0)" in cartpole
    assert "below" not in acrobot
    # Nothing is said where one side is missing.
    assert "Pendulum" not in page


def test_every_task_has_one_algorithm_and_whole_rollouts(bench: Bench) -> None:
    for task in bench["learning_tasks"].TASKS.values():
        assert (task.ppo is None) != (task.sac is None)
        if task.ppo is not None:
            rows_per_rollout = task.num_envs * task.ppo.num_steps
            assert task.ppo.minibatch_size(task.num_envs) * task.ppo.num_minibatches == rows_per_rollout
