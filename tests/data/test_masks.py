"""A mask may be one array, or have the action's own shape; either way its columns are those of the policy's choices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.data.masks import mask_rows
from quintain.data.spec import DictSpec, DiscreteSpec, MultiDiscreteSpec, Spec, TupleSpec, box, discrete_sizes

CHOICE = DiscreteSpec(3)
CHOICES = MultiDiscreteSpec((2, 3))
HYBRID = DictSpec((("gear", CHOICE), ("steer", box(2)), ("lights", CHOICES)))
PAIR = TupleSpec((CHOICES, box(1), CHOICE))
ONE = np.ones(1, np.bool_)


def row(action: Spec, value: Any) -> list[int]:
    return mask_rows(action, value, ONE)[0].astype(int).tolist()


@pytest.mark.parametrize(
    ("action", "value", "expected"),
    [
        (CHOICE, [True, False, True], [1, 0, 1]),
        (CHOICE, np.array([0, 1, 0], np.int8), [0, 1, 0]),
        (CHOICES, [1, 0, 0, 1, 1], [1, 0, 0, 1, 1]),
        (CHOICES, (np.array([1, 0]), np.array([0, 1, 1])), [1, 0, 0, 1, 1]),
        (HYBRID, [1, 0, 0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 0, 1, 1]),
        # By name, so the order in which the environment writes them does not matter.
        (HYBRID, {"lights": [1, 0, 0, 1, 1], "gear": [1, 0, 0]}, [1, 0, 0, 1, 0, 0, 1, 1]),
        (HYBRID, {"lights": ([1, 0], [0, 1, 1]), "gear": [1, 0, 0], "steer": None}, [1, 0, 0, 1, 0, 0, 1, 1]),
        (PAIR, ([1, 0, 0, 1, 1], None, [0, 0, 1]), [1, 0, 0, 1, 1, 0, 0, 1]),
    ],
)
def test_masks_become_one_row_of_choices(action: Spec, value: Any, expected: list[int]) -> None:
    assert row(action, value) == expected
    assert len(expected) == sum(discrete_sizes(action))


def test_masks_of_several_lanes_are_rows_and_only_the_wanted_ones_must_allow_something() -> None:
    value = {"gear": np.array([[1, 0, 0], [0, 0, 0]]), "lights": np.array([[1, 0, 0, 1, 1], [0, 0, 0, 0, 0]])}
    wanted = np.array([True, False])
    assert mask_rows(HYBRID, value, wanted).astype(int).tolist() == [[1, 0, 0, 1, 0, 0, 1, 1]]
    with pytest.raises(ValueError, match="allows nothing of choice 0"):
        mask_rows(HYBRID, value, np.array([True, True]))


@pytest.mark.parametrize(
    ("action", "value", "problem"),
    [
        (CHOICE, [True, True], "2 options, expected 3"),
        (CHOICE, [[True] * 3] * 2, "6 options, expected 3"),
        (CHOICE, [False] * 3, "allows nothing; at least one"),
        (CHOICES, [1, 1, 0, 0, 0], "allows nothing of choice 1"),
        (HYBRID, {"gear": [1, 1, 1]}, "without 'lights'"),
        (HYBRID, {"gear": [1, 1, 1], "lights": [1]}, "4 options, expected 8"),
    ],
)
def test_what_is_no_mask_is_refused_with_a_sentence(action: Spec, value: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        row(action, value)


def test_a_mask_without_a_row_for_each_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="one row for each of 2 lanes"):
        mask_rows(CHOICE, [True] * 6, np.array([True, True]))
