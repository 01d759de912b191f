"""A kernel gets what it was called with, whatever that looks like in memory."""

from __future__ import annotations

import sys
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest

from quintain.compiled.runtime.kernel import fast_kernel, fast_part, kernel, matrix


class Pair(NamedTuple):
    left: Any
    right: Any


@fast_part
def _twice(x: Any) -> Any:
    return 2 * x


@kernel
def _weigh(numbers: Any, weights: tuple[Any, Any], is_counted: bool, scale: float, first: int) -> float:
    total = 0.0
    for i in range(first, numbers.shape[0]):
        for j in range(numbers.shape[1]):
            if is_counted:
                total += scale * numbers[i, j] * weights[0][j] + weights[1]
    return total


def _expected(numbers: Any, weights: Any, is_counted: bool, scale: float, first: int) -> float:
    return float(np.sum(scale * numbers[first:] * weights[0] + weights[1])) if is_counted else 0.0


GRID = np.arange(24.0, dtype=np.float32).reshape(4, 6)


@pytest.mark.parametrize(
    "numbers",
    [GRID, GRID[:, ::2], GRID[::-1], GRID.T, GRID.astype(np.float64), GRID.astype(np.int64), GRID[:0]],
    ids=["rows", "every other column", "backwards", "columns", "doubles", "integers", "nothing"],
)
@pytest.mark.parametrize(("is_counted", "scale", "first"), [(True, 0.5, 0), (True, -3.0, 1), (False, 1.0, 0)])
def test_arrays_are_read_as_they_lie(numbers: Any, is_counted: bool, scale: float, first: int) -> None:
    weights = (np.linspace(-1.0, 1.0, numbers.shape[1]), -0.25)
    found = _weigh(numbers, weights, is_counted, scale, first)
    assert found == pytest.approx(_expected(numbers, weights, is_counted, scale, first), rel=1e-6)


@kernel
def _swap(pair: Pair, record: Any) -> int:
    for i in range(len(pair.left)):
        pair.left[i], pair.right[i] = pair.right[i], pair.left[i]
    return int(_twice(record[0].age))


def test_tuples_have_names_and_arrays_may_hold_records() -> None:
    left, right = np.arange(3), np.arange(3, 6)
    assert _swap(Pair(left, right), np.array([(21, 1.0)], [("age", np.int64), ("size", np.float64)])) == 42
    assert (left.tolist(), right.tolist()) == ([3, 4, 5], [0, 1, 2])


def test_a_bound_call_reads_what_its_arrays_hold_now() -> None:
    numbers = np.ones((2, 3))
    call = _weigh.bind(numbers, (np.ones(3), 0.0), True, 1.0, 0)
    assert call() == 6.0
    numbers[:] = 2.0
    assert call() == 12.0


def test_a_bound_call_keeps_its_arrays_alive() -> None:
    call = _weigh.bind(np.full((50, 40), 3.0), (np.ones(40), 0.0), True, 1.0, 0)
    assert [np.zeros((50, 40)) for _ in range(20)]
    assert call() == 6000.0


@fast_kernel
def _diagonal(flat: Any, size: int, out: Any) -> None:
    square = matrix(flat, 1, size, size)
    for i in range(size):
        out[i] = square[i, i]


def test_a_stretch_of_numbers_is_a_matrix() -> None:
    out = np.zeros(3)
    assert _diagonal(np.arange(10.0), 3, out) is None
    assert out.tolist() == [1.0, 5.0, 9.0]


def test_arguments_have_places() -> None:
    with pytest.raises(TypeError, match="by their places"):
        _diagonal(flat=np.arange(10.0), size=3, out=np.zeros(3))


@kernel
def _count(numbers: Any, rounds: int) -> float:
    total = 0.0
    for _ in range(rounds):
        for i in range(len(numbers)):
            total += numbers[i]
    return total


def test_other_threads_run_meanwhile() -> None:
    numbers = np.ones(1000)
    _count(numbers, 1)
    ticks: list[int] = []
    has_ended = threading.Event()

    def tick() -> None:
        while not has_ended.is_set():
            ticks.append(1)

    thread = threading.Thread(target=tick)
    previous = sys.getswitchinterval()
    sys.setswitchinterval(0.5)  # longer than the call: nobody gives way unless the call does
    try:
        thread.start()
        before = len(ticks)
        assert _count(numbers, 20_000) == 2e7
        after = len(ticks)
    finally:
        has_ended.set()
        sys.setswitchinterval(previous)
        thread.join()
    assert after > before
