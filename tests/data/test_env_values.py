"""What an environment calls its choices and what a rollout stores are translated both ways without a loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from quintain.data.env_values import env_shape, from_env, is_in_range, to_env
from quintain.data.spec import DiscreteSpec, LeafSpec, MultiDiscreteSpec, box

GRID = MultiDiscreteSpec((2, 3, 4, 5), starts=(0, 10, 0, 20), env_shape=(2, 2))
TEXT = MultiDiscreteSpec((4,) * 5, characters="abc")


@pytest.mark.parametrize(
    ("leaf", "value", "stored"),
    [
        (box(2), [0.5, 1.0], [0.5, 1.0]),
        (DiscreteSpec(3), 2, 2),
        (DiscreteSpec(3, start=-1), -1, 0),
        (MultiDiscreteSpec((2, 3)), [1, 2], [1, 2]),
        (GRID, [[1, 12], [3, 24]], [1, 2, 3, 4]),
        # Characters are numbered from 1, unknown ones and what fills up are 0.
        (TEXT, "cab!", [3, 1, 2, 0, 0]),
    ],
    ids=["box", "choice", "choice from -1", "choices", "grid of choices", "text"],
)
def test_one_value_and_a_batch_are_stored_alike(leaf: LeafSpec, value: Any, stored: Any) -> None:
    assert np.asarray(from_env(leaf, value)).tolist() == stored
    assert np.asarray(from_env(leaf, np.array([value, value]))).tolist() == [stored, stored]
    assert np.shape(value) == env_shape(leaf)


@pytest.mark.parametrize(
    ("leaf", "stored", "given"),
    [
        (box(2), [0.5, 1.0], [0.5, 1.0]),
        (DiscreteSpec(3, start=5), 2, 7),
        (MultiDiscreteSpec((2, 3)), [1, 2], [1, 2]),
        (GRID, [1, 2, 3, 4], [[1, 12], [3, 24]]),
    ],
    ids=["box", "choice from 5", "choices", "grid of choices"],
)
def test_actions_go_back_the_same_way_in_memory_of_their_own(leaf: LeafSpec, stored: Any, given: Any) -> None:
    rows = np.array([stored, stored])
    result = to_env(leaf, rows)
    assert result.tolist() == [given, given]
    assert not np.shares_memory(result, rows)


def test_a_text_that_is_too_long_does_not_have_the_declared_shape() -> None:
    assert from_env(TEXT, "aaaaaaa").shape == (7,)


@pytest.mark.parametrize(
    ("leaf", "inside", "outside"),
    [
        (DiscreteSpec(3), [0, 2], [-1, 3]),
        (MultiDiscreteSpec((2, 3)), [[0, 0], [1, 2]], [[2, 0], [0, 3], [-1, 0]]),
        (box(1, low=0, high=1), [[0.0], [7.0]], []),
    ],
)
def test_choices_outside_their_range_are_found(leaf: LeafSpec, inside: list[Any], outside: list[Any]) -> None:
    assert all(is_in_range(leaf, value) for value in inside)
    assert not any(is_in_range(leaf, value) for value in outside)
