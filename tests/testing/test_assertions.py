"""The public assertions notice what they are for: state that was forgotten, saved wrongly, or not put back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from quintain import RunFile
from quintain.algorithms.ppo import PPO
from quintain.core.progress import Progress
from quintain.core.state import KeepsState
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.testing import assert_all_state_saved, assert_resumes_exactly, differences
from quintain.trainers import Trainer

SETTINGS = RunFile.from_names(
    "ppo", "CartPole-v1", "num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=1", "total_timesteps=128"
)


def make(settings: RunFile = SETTINGS) -> Trainer:
    run = Run(settings, [])
    return assemble(settings, run, run.writer)


def test_they_accept_what_ships() -> None:
    assert_all_state_saved(make())
    assert_resumes_exactly(SETTINGS)


def test_an_attribute_of_the_trainer_that_is_not_saved_is_named() -> None:
    class Counting(Trainer):
        def _install(self, parts: Any) -> None:
            super()._install(parts)
            self.seen = 0

        def _stage_update(self) -> bool:
            self.seen += 1
            return super()._stage_update()

    def counting() -> Trainer:
        trainer = make()
        trainer.__class__ = Counting
        trainer.seen = 0  # type: ignore[attr-defined]  # as its _install would
        return trainer

    with pytest.raises(AssertionError, match=r"1 attributes differ after loading the saved state:\n  seen: 2 and 0"):
        assert_all_state_saved(counting(), counting())


def test_memory_of_an_algorithm_that_is_declared_stateless_is_found_by_what_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Momentum left out of the state cannot be seen in the attributes, but in the next update."""
    monkeypatch.setattr(PPO, "not_state", PPO.not_state | {"optimizer"})
    with pytest.raises(
        AssertionError, match=r"one cycle after loading the saved state:\n  learners\.default\.policy\."
    ):
        assert_all_state_saved(make())


def test_a_resume_that_loses_the_momentum_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PPO, "not_state", PPO.not_state | {"optimizer"})
    with pytest.raises(AssertionError, match=r"the resumed run differs in \d+ places:\n  learners\.default\.policy\."):
        assert_resumes_exactly(SETTINGS)


def test_a_resume_that_loses_a_counter_is_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Progress.load_state_dict

    def forgetful(self: Progress, state: dict[str, Any]) -> None:
        load(self, {**state, "updates": 0})

    monkeypatch.setattr(Progress, "load_state_dict", forgetful)
    with pytest.raises(AssertionError, match=r"progress\.updates: 4 and 2"):
        # 2 lanes of 16 steps: 4 updates in all, and the interruption comes in the third cycle.
        assert_resumes_exactly(SETTINGS.replace("events", []), stop_after_steps=[2 * (16 + 2) + 5])


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (1, 1, []),
        (math.nan, math.nan, []),
        (0.1, 0.2, [": 0.1 and 0.2"]),
        (1, 1.0, [": a int and a float"]),
        ([1, 2], [1], [": 2 and 1 items"]),
        ({"a": 1}, {"b": 1}, ["a: only on one side", "b: only on one side"]),
        (np.zeros(2), np.zeros(3), [": float64[2] and float64[3]"]),
        (np.float32(0.0), np.float32(-0.0), [": [0.] and [-0.] (the first numbers)"]),
        ({"t": torch.ones(1)}, {"t": torch.zeros(1)}, ["t: [1.] and [0.] (the first numbers)"]),
    ],
)
def test_differences_are_named_by_path_and_down_to_the_last_bit(left: Any, right: Any, expected: list[str]) -> None:
    assert list(differences(left, right)) == expected


def test_differences_reach_into_objects_and_leave_out_what_is_not_state() -> None:
    class Part(KeepsState):
        not_state = frozenset({"scratch"})

        def __init__(self, number: int) -> None:
            self.inner = {"numbers": [0, number]}
            self.scratch = number

    assert list(differences(Part(1), Part(2))) == ["inner.numbers[1]: 1 and 2"]


def test_generators_differ_by_their_position() -> None:
    one, other = np.random.default_rng(0), np.random.default_rng(0)
    assert not list(differences(one, other))
    one.random()
    assert list(differences(one, other))
