"""What every source of rollouts promises: it fills, stops when asked, continues there, and knows its version."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quintain.core import registry
from quintain.data import fields as f
from quintain.testing import differences
from quintain.trainers import Trainer
from tests.contracts.cases import NUM_STEPS, make_trainer, run_file

SLOW = {"processes"}
"""Placements that import torch in another process before they act."""
ON_A_CLUSTER = {"ray"}
"""Placements whose case is in their own test, which starts one cluster for all of it."""
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW))
    for name in registry.names("placement")
    if name not in ON_A_CLUSTER
]
pytestmark = pytest.mark.parametrize("name", NAMES)


def make(name: str) -> Trainer:
    chosen = run_file().replace("run.placement", name)
    # Three at once must find room on two cores.
    return make_trainer(chosen.replace("run.placement.num_cpus_per_actor", 0.25) if name == "ray" else chosen)


def never() -> bool:
    return False


def after(num_steps: int) -> Callable[[], bool]:
    asked = iter(range(num_steps))
    return lambda: next(asked, None) is None


def fill(trainer: Trainer, should_stop: Callable[[], bool] = never) -> bool:
    """Lets the source fill the store of the one behaviour."""
    return trainer.source.next_full({"default": trainer.store}, ["default"], should_stop) == "default"


def fill_in_part(name: str, trainer: Trainer, num_steps: int) -> None:
    is_full = fill(trainer, after(num_steps))
    assert is_full == trainer.store.ready()
    # Only a source that collects in this thread asks before each step; others may be done before they are asked again.
    assert not is_full or (name != "local" and num_steps > 0)


def test_filling_makes_the_store_ready(name: str) -> None:
    trainer = make(name)
    assert not trainer.store.ready()
    assert fill(trainer)
    assert trainer.store.ready()
    trainer.close()


def test_a_stop_inside_a_rollout_is_invisible_in_it(name: str) -> None:
    whole, parted = make(name), make(name)
    fill(whole)
    for num_steps in (0, 5, 11):
        fill_in_part(name, parted, num_steps)
    assert fill(parted)
    assert not list(differences(whole.store.state_dict(), parted.store.state_dict()))
    whole.close()
    parted.close()


def test_a_loaded_state_continues_inside_a_rollout(name: str) -> None:
    whole, first, second = make(name), make(name), make(name)
    fill(whole)
    fill_in_part(name, first, NUM_STEPS // 2)
    second.source.load_state_dict(first.source.state_dict())
    second.store.load_state_dict(first.store.state_dict())
    assert fill(second)
    assert not list(differences(whole.store.state_dict(), second.store.state_dict()))
    for trainer in (whole, first, second):
        trainer.close()


def test_rollouts_carry_the_version_that_acted(name: str) -> None:
    trainer = make(name)
    for version in (0, 6):
        trainer.source.publish("default", version, trainer.policy)
        assert fill(trainer)
        [rollout] = trainer.store.take()
        assert rollout[f.POLICY_VERSION].eq(version).all()
        trainer.store.release()
    trainer.close()


def test_it_says_how_exactly_it_resumes_and_how_long_it_took(name: str) -> None:
    trainer = make(name)
    assert trainer.source.exactness == "exact"
    fill(trainer)
    seconds = trainer.source.drain_seconds()
    assert set(seconds) == {"act", "env"}
    assert all(value > 0 for value in seconds.values())
    assert set(trainer.source.drain_seconds().values()) == {0.0}
    trainer.close()
