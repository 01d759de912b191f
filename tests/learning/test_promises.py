"""The README's promise that takes seconds to keep is tried with every change: the defaults solve CartPole.

`make learning` tries it, and everything else, over several seeds.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.learning.trials import Task, run

TASK = Task("cartpole-defaults", "quintain train ppo CartPole-v1 total_timesteps=60k", target=475.0, num_seeds=1)


@pytest.mark.slow
def test_the_defaults_solve_cartpole(tmp_path: Path) -> None:
    outcome = run(TASK, 0, tmp_path)
    assert TASK.is_met_by(outcome.best_mean)
    assert TASK.is_met_by(outcome.latest_mean)
