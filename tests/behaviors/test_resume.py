"""A run of several behaviours that was interrupted is the run that was not, wherever it was interrupted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quintain.data import fields as f
from quintain.data.differences import differences
from quintain.runs.launch import resume, start
from quintain.testing import assert_resumes_exactly
from tests.behaviors.runs import make, run_file, world_of


@pytest.mark.parametrize("task", ["balance_ball", "gates", "ball_and_gates", "couriers"])
def test_stopped_anywhere_it_ends_with_the_same_numbers(task: str) -> None:
    assert_resumes_exactly(run_file(task), stop_after_steps=[1, 7, 13, 20])


def test_kernels_act_for_changing_numbers_of_agents_the_same_after_a_resume() -> None:
    assert_resumes_exactly(run_file("ball_and_gates", 400, policy={"compiled": True}), stop_after_steps=[7, 13])


def test_a_checkpoint_holds_of_open_trajectories_what_is_there() -> None:
    settings = run_file("balance_ball", 2000, rollout={"time_horizon": 1000})
    trainer = make(settings)
    world_of(trainer).play(7, lambda: False)
    collector = world_of(trainer).collectors["Ball"]
    assert {field.shape[1] for field in collector.assembler.state_dict()["steps"].values()} == {7}
    with torch.inference_mode():
        collector.act(0)
    steps = collector.assembler.state_dict()["steps"]
    # Of the eighth step only the action is known.
    assert {field.shape[1] for field in steps.values()} == {8}
    assert (steps[f.LOG_PROB][:10] != 0).all()
    assert (steps[f.REWARD][:10, :7] != 0).all()
    assert (steps[f.REWARD][:10, 7] == 0).all()


def test_a_fresh_trainer_that_loads_a_state_goes_on_the_same() -> None:
    settings = run_file("ball_and_gates", policy={"normalize_obs": True})
    trainer, other = make(settings), make(settings)
    for _ in range(3):
        trainer.advance()
    saved = trainer.state_dict()
    other.load_state_dict(saved)
    assert list(differences(saved["training"], other.state_dict()["training"])) == []
    trainer.advance()
    other.global_streams.load_state_dict(saved["training"]["global_streams"])
    other.advance()
    assert list(differences(trainer.state_dict()["training"], other.state_dict()["training"])) == []


def test_a_behaviour_that_has_spent_its_budget_stays_as_it_is(tmp_path: Path) -> None:
    settings = run_file("ball_and_gates", budgets={"Gate": 128})
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    trainer = launched.trainer
    weights = None
    while not trainer.is_finished:
        trainer.advance()
        gate = trainer.learners["Gate"]
        if gate.is_finished and weights is None:
            weights = {name: value.clone() for name, value in gate.policy.state_dict().items()}
            steps = gate.progress.env_steps
    assert weights is not None
    assert gate.progress.env_steps == steps < trainer.learners["Ball"].progress.env_steps  # type: ignore[attr-defined]
    assert all(bool((value == weights[name]).all()) for name, value in gate.policy.state_dict().items())
    launched.run.close()


def test_training_for_longer_is_the_longer_run(tmp_path: Path) -> None:
    """Where there is one behaviour: of two, one would have stopped learning while the other went on."""
    short, long = run_file("gates", 300), run_file("gates", 900)
    expected = start(long, runs_dir=tmp_path, run_id="long", quiet=True)
    expected.trainer.train()
    expected.run.close()
    first = start(short, runs_dir=tmp_path, run_id="short", quiet=True)
    first.trainer.train()
    first.run.close()
    again = resume(tmp_path, "short", ["total_timesteps=900"], allow=["quintain.envs.agents.tasks:gates"], quiet=True)
    again.trainer.train()
    again.run.close()
    assert list(differences(expected.trainer.state_dict()["training"], again.trainer.state_dict()["training"])) == []
