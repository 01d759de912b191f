"""Lessons follow each other as behaviours learn, are in every checkpoint, and change numbers between cycles only."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.envs.settings import AgentsSettings, LessonSettings
from quintain.errors import SettingsError
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from quintain.trainers.curriculum import Curriculum
from tests.behaviors.runs import make, run_file, world_of


def lessons(**until: Any) -> tuple[LessonSettings, ...]:
    first = LessonSettings.model_validate({"value": 1.0, "until": {"behavior": "Ball", **until}})
    return first, LessonSettings(value=2.0)


def hear(curriculum: Curriculum, *returns: float) -> None:
    curriculum.hear("Ball", returns)


def test_a_lesson_is_learned_when_the_mean_of_enough_episodes_is_above_the_threshold() -> None:
    curriculum = Curriculum({"push": lessons(threshold=3.0, min_episodes=3, is_smoothed=False)})
    hear(curriculum, 9.0, 9.0)
    assert curriculum.advance({"Ball": 0.5}) == ([], False), "two episodes are too few"
    hear(curriculum, 0.0, 0.0, 0.0)
    assert curriculum.advance({"Ball": 0.5}) == ([], False), "only the newest three count"
    hear(curriculum, 4.0, 5.0, 1.0)
    assert curriculum.advance({"Ball": 0.5}) == (["push"], False)
    assert curriculum.current("push").value == 2.0
    assert curriculum.returns == {"Ball": []}, "the next lesson begins with none"
    hear(curriculum, 100.0, 100.0, 100.0)
    assert curriculum.advance({"Ball": 1.0}) == ([], False), "there is no other"


def test_a_smoothed_number_follows_slowly() -> None:
    curriculum = Curriculum({"push": lessons(threshold=3.9)})
    hear(curriculum, 4.0)
    # 3/4 of 4 is 3; then 3/4 of 4 and 1/4 of 3 is 3.75; then 3.9375.
    assert [bool(curriculum.advance({"Ball": 0.0})[0]) for _ in range(3)] == [False, False, True]


def test_progress_is_the_part_of_the_budget_that_is_spent() -> None:
    curriculum = Curriculum({"push": lessons(measure="progress", threshold=0.4, resets=True)})
    assert curriculum.advance({"Ball": 0.9}) == ([], False), "nobody has ended an episode yet"
    hear(curriculum, -1.0)
    assert curriculum.advance({"Ball": 0.3}) == ([], False)
    assert curriculum.advance({"Ball": 0.5}) == (["push"], True)


def curriculum_file(**until: Any) -> RunFile:
    settings = run_file("ball_and_gates", 400).to_dict()
    first = {"value": 0.5, "until": {"behavior": "Gate", "measure": "progress", "threshold": 0.3, **until}}
    last = {"sampler": {"distribution": "uniform", "numbers": [2.0, 3.0]}}
    settings["experiment"]["env"]["curricula"] = {"push": [first, last]}
    return RunFile.from_mapping(settings)


def test_the_environment_gets_the_numbers_of_each_lesson() -> None:
    trainer = make(curriculum_file())
    balls = [copy.populations["Ball"] for copy in world_of(trainer).env.copies]  # type: ignore[attr-defined]
    assert all((ball.push == 0.5).all() for ball in balls)
    trainer.train()
    assert trainer.curriculum.numbers == {"push": 1}
    assert all(((ball.push == 0.5) | (ball.push >= 2.0)).all() for ball in balls)
    assert any((ball.push >= 2.0).any() for ball in balls), "agents that began after the lesson changed"


@pytest.mark.parametrize("resets", [False, True])
def test_a_run_with_lessons_resumes_exactly(resets: bool) -> None:
    assert_resumes_exactly(curriculum_file(resets=resets), stop_after_steps=[6, 20])


def test_lessons_that_never_end_or_wait_for_nobody_are_refused() -> None:
    with pytest.raises(SettingsError, match="every lesson of push but the last has `until`"):
        AgentsSettings(id="a:b", curricula={"push": (LessonSettings(value=1.0), LessonSettings(value=2.0))})
    with pytest.raises(SettingsError, match="set one of value and sampler"):
        LessonSettings()
    with pytest.raises(SettingsError, match='a lesson waits for behaviour "Goal"'):
        make(curriculum_file(behavior="Goal"))
