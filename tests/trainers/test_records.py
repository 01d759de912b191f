"""Which evaluation of a run is its best: of equals the later one."""

from __future__ import annotations

import pytest

from quintain.trainers.records import Records


@pytest.mark.parametrize(
    ("mode", "scores", "best", "marked"),
    [
        # Where returns have a ceiling, the first to touch it was often lucky.
        ("max", [1.0, 5.0, 5.0, 4.0], 300, [100, 200, 300]),
        ("min", [5.0, 1.0, 1.0, 2.0], 300, [100, 200, 300]),
        ("max", [5.0, 1.0, 2.0, 5.0], 400, [100, 400]),
    ],
)
def test_of_equally_good_evaluations_the_later_is_the_best(
    mode: str, scores: list[float], best: int, marked: list[int]
) -> None:
    records, found = Records(), []
    for step, score in zip((100, 200, 300, 400), scores, strict=True):
        records.evaluated(step, -7.0, 5, score=score, mode=mode)
        if records.is_new_best(step):
            found.append(step)
    assert (records.best_step, found) == (best, marked)


def test_of_equal_mean_returns_the_later_is_the_best_of_training() -> None:
    records = Records()
    assert [records.is_best_of_training(mean) for mean in (2.0, 1.0, 2.0, 1.9, 3.0)] == [True, False, True, False, True]
