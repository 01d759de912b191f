"""Numbers that are not numbers pass through SAC's kernels, whichever critic says them."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.compiled.kernels import soft


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def rows_of(num_rows: int) -> soft.Rows:
    memory = [np.zeros((num_rows, 2), np.float32) for _ in range(5)]
    return soft.Rows(*memory, log_prob=np.zeros(2 * num_rows, np.float32))


def test_the_errors_of_both_critics_by_hand() -> None:
    rows, report = rows_of(2), np.zeros(4)
    rows.log_prob[2:] = (0.5, -1.0)
    by_values = column(0, 0), column(0, 0)
    worth = np.array([1.0, 2.0], np.float32), np.array([0.5, 0.0], np.float32)
    values, foreseen = (column(3, 1), column(0, 4)), (column(4, 9), column(2, 7))
    soft.judge_values(values, foreseen, worth, 2.0, rows, by_values, report)
    # Targets: 1 + 0.5 (min(4, 2) - 2 * 0.5) = 1.5 and 2. Errors: (1.5, -1) and (-1.5, 2); shares of two rows.
    np.testing.assert_allclose(by_values[0], column(0.75, -0.5))
    np.testing.assert_allclose(by_values[1], column(-0.75, 1.0))
    assert report[soft.CRITIC_LOSS] == pytest.approx(0.5 * (2.25 + 1 + 2.25 + 4) / 2)
    assert report[soft.Q_VALUE] == pytest.approx((3 + 1 + 0 + 4) / 4)


def test_only_the_lower_critic_counts_and_equals_share() -> None:
    by_values, report = (column(0, 0, 0), column(0, 0, 0)), np.zeros(4)
    soft.choose_critic((column(1, 5, 2), column(3, 4, 2)), by_values, report)
    np.testing.assert_allclose(by_values[0], column(-1 / 3, 0, -1 / 6))
    np.testing.assert_allclose(by_values[1], column(0, -1 / 3, -1 / 6))
    assert report[soft.POLICY_LOSS] == pytest.approx(-(1 + 4 + 2) / 3)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_number_that_is_not_one_is_reported(broken: int) -> None:
    values = [column(1, 5), column(3, 4)]
    values[broken][1] = np.nan
    by_values, report = (column(0, 0), column(0, 0)), np.zeros(4)
    soft.choose_critic((values[0], values[1]), by_values, report)
    assert np.isnan(report[soft.POLICY_LOSS])
    worth = np.ones(2, np.float32), np.ones(2, np.float32)
    soft.judge_values((column(1, 1), column(1, 1)), (values[0], values[1]), worth, 0.1, rows_of(2), by_values, report)
    assert np.isnan(report[soft.CRITIC_LOSS])
    assert np.isnan(by_values[0]).sum() == np.isnan(by_values[1]).sum() == 1
