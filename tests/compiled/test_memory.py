"""A step of memory by a kernel is that of torch's own cells, and no lane's numbers depend on the others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain.compiled.kernels.memory import BLOCK, remember, to_columns
from quintain.compiled.kernels.tables import CELLS, MemoryTables, Observed

NOTHING = np.zeros(0, np.float32)
TORCHS: dict[str, Any] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


class Stepper:
    """One cell of torch's, and the tables by which a kernel finds the same numbers."""

    def __init__(self, kind: str, num_features: int, size: int) -> None:
        torch.manual_seed(3)
        self.kind, self.size, self.num_features = kind, size, num_features
        self.cell = TORCHS[kind](num_features, size)
        parts = [self.cell.weight_ih, self.cell.weight_hh, self.cell.bias_ih, self.cell.bias_hh]
        # Two numbers in front, so that a place that is counted from elsewhere is noticed.
        self.flat = torch.cat([torch.full((2,), 9.0), *(part.detach().reshape(-1) for part in parts)]).numpy()
        places = 2 + np.cumsum([0, *(part.numel() for part in parts[:-1])])
        num_gates = len(parts[0])
        row = [*places, num_features, size, num_gates, 1]
        self.memory = MemoryTables(CELLS.index(kind), np.array([row], np.int64))
        self.state_size = 2 * size if kind == "lstm" else size
        self.widest = max(num_features, num_gates)

    def step(self, rows: np.ndarray, state: np.ndarray, first: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns outputs and the state after a step; the state's first column is not the memory's."""
        after = state.copy()
        outputs = np.zeros((1, len(rows), self.size), np.float32)
        seen = Observed(rows, NOTHING, NOTHING, 0.0)
        scratch = np.zeros((4, BLOCK * self.widest), np.float32)
        remember(self.memory, self.flat, (seen, seen), first, after, outputs, scratch)
        return outputs[0], after

    def expected(self, rows: np.ndarray, state: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Returns the state after a step by torch's cell."""
        own = torch.from_numpy(np.where(first[:, None], np.float32(0.0), state[:, 1:]))
        with torch.no_grad():
            if self.kind == "gru":
                return self.cell(torch.from_numpy(rows), own).numpy()
            both = self.cell(torch.from_numpy(rows), (own[:, : self.size], own[:, self.size :]))
            return torch.cat(both, dim=1).numpy()


def given(stepper: Stepper, num_lanes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(num_lanes)
    rows = draw.normal(size=(num_lanes, stepper.num_features)).astype(np.float32)
    state = draw.normal(size=(num_lanes, 1 + stepper.state_size)).astype(np.float32)
    return rows, state, draw.random(num_lanes) < 0.3


@pytest.mark.parametrize("num_lanes", [1, 2, 7, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize(("num_features", "size"), [(4, 16), (1, 1), (5, 7), (33, 9)])
@pytest.mark.parametrize("kind", CELLS)
def test_a_step_is_that_of_torchs_cell(kind: str, num_features: int, size: int, num_lanes: int) -> None:
    stepper = Stepper(kind, num_features, size)
    rows, state, first = given(stepper, num_lanes)
    outputs, after = stepper.step(rows, state, first)
    expected = stepper.expected(rows, state, first)
    np.testing.assert_allclose(after[:, 1:], expected, rtol=1e-5, atol=2e-6)
    np.testing.assert_array_equal(outputs, after[:, 1 : 1 + size])
    np.testing.assert_array_equal(after[:, 0], state[:, 0])


@pytest.mark.parametrize("kind", CELLS)
def test_a_lane_remembers_the_same_to_the_last_bit_whoever_is_beside_it(kind: str) -> None:
    stepper = Stepper(kind, 6, 19)
    rows, state, first = given(stepper, 2 * BLOCK + 3)
    _, together = stepper.step(rows, state, first)
    for part in (slice(0, 1), slice(1, 8), slice(8, 8 + BLOCK), slice(8 + BLOCK, None)):
        _, alone = stepper.step(rows[part].copy(), state[part].copy(), first[part].copy())
        np.testing.assert_array_equal(alone, together[part])


@pytest.mark.parametrize("kind", CELLS)
def test_what_is_not_a_number_stays_in_its_lane_and_is_seen(kind: str) -> None:
    stepper = Stepper(kind, 4, 8)
    rows, state, first = given(stepper, 6)
    state[2, 3], first[2] = np.nan, False
    state[3, 3], first[3] = np.nan, True
    outputs, _ = stepper.step(rows, state, first)
    assert np.isnan(outputs).any(axis=1).tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("num_rows", [1, 15, 16, 40])
def test_rows_become_columns_and_the_rest_is_cleared(num_rows: int) -> None:
    rows = np.random.default_rng(0).normal(size=(num_rows, 5)).astype(np.float32)
    columns = np.full((5, 48), 7.0, np.float32)
    to_columns(rows, columns)
    np.testing.assert_array_equal(columns[:, :num_rows], rows.T)
    assert not columns[:, num_rows:].any()
