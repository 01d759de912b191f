"""What every reward signal promises: one finite number per step and lane, weighted by its strength."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.core import registry
from quintain.data import fields as f
from quintain.errors import SettingsError
from tests.contracts.cases import NUM_LANES, NUM_STEPS, make_trainer, run_file

OF_TEAMS = {"zero_knowledge"}
"""Signals that compare agents of a conversation; they have tests of their own."""
NAMES = [*(name for name in registry.names("reward_signal") if name not in OF_TEAMS), "stillness"]


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_gives_every_step_a_number(name: str) -> None:
    trainer = make_trainer(run_file(reward_signals={name: {"gamma": 0.9, "strength": 2.0}}))
    assert trainer._stage_collect()
    assert trainer.batch is not None
    [signal] = trainer.algorithm.signals.values()
    reward = signal.evaluate(trainer.batch.rollout)
    assert reward.shape == (NUM_STEPS, NUM_LANES)
    assert np.isfinite(reward).all()
    assert (signal.gamma, signal.strength) == (0.9, 2.0) == (trainer.algorithm.gamma, 2.0)
    np.testing.assert_array_equal(trainer.algorithm.reward(trainer.batch.rollout), 2.0 * reward)
    signal.load_state_dict(signal.state_dict())
    np.testing.assert_array_equal(signal.evaluate(trainer.batch.rollout), reward)


def test_several_signals_are_added_up() -> None:
    signals = {"extrinsic": {"strength": 2.0}, "calm": {"type": "stillness", "strength": 0.5}}
    trainer = make_trainer(run_file(reward_signals=signals))
    assert trainer._stage_collect()
    assert trainer.batch is not None
    rollout = trainer.batch.rollout
    # CartPole pays 1 for every step and its actions are 0 or 1: 2 * 1 - 0.5 * a * a.
    expected = 2.0 - 0.5 * rollout.array(f.ACTION)[:-1] ** 2
    np.testing.assert_array_equal(trainer.algorithm.reward(rollout), expected)


def test_different_discounts_are_refused() -> None:
    signals = {"extrinsic": {"gamma": 0.9}, "stillness": {"gamma": 0.8}}
    with pytest.raises(SettingsError, match=r"extrinsic\.gamma 0\.9, stillness\.gamma 0\.8"):
        make_trainer(run_file(reward_signals=signals))
