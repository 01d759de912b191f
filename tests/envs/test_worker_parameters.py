"""Parameters of environments that live in workers: as in this process, and in force again after a worker was lost."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from quintain.core.rng import Rng
from quintain.envs.eventful import with_events
from quintain.envs.gym.lanes import LaneEnv
from quintain.errors import EnvError
from tests.envs.test_workers import LANES, Crowd, actions, fragile_name, make, numbers, pids

__all__ = ["make"]
BLOWN = {"wind": np.array([0.0, 0.1, 0.2, 0.3])}


def play_in_wind(env: LaneEnv) -> list[list[bytes]]:
    env.reset()
    played = []
    for step in range(40):
        if step == 7:
            env.set_parameters(BLOWN)
        if step == 9:
            env.set_parameters({"wind": -0.25}, [2])
        played.append(numbers(env.step(actions(step))))
    return played


def test_parameters_give_the_same_numbers_everywhere(make: Crowd) -> None:
    alone = play_in_wind(make(fragile_name("Windy"), None))
    assert play_in_wind(make(fragile_name("Windy"), 1)) == alone
    assert play_in_wind(make(fragile_name("Windy"), 3)) == alone
    env = make(fragile_name("Windy"), None)
    env.reset()
    assert [numbers(env.step(actions(step))) for step in range(40)] != alone


@pytest.mark.parametrize("num_workers", [None, 2])
def test_an_episode_with_parameters_is_replayed(make: Crowd, num_workers: int | None) -> None:
    env = make(fragile_name("Windy"), num_workers)
    play_in_wind(env)
    again = make(fragile_name("Windy"), num_workers)
    again.load_state_dict(env.state_dict())
    assert again.exactness == "exact"
    for step in range(40, 60):
        assert numbers(again.step(actions(step))) == numbers(env.step(actions(step)))


def test_they_are_in_force_again_after_the_worker_was_killed(make: Crowd) -> None:
    env = make(fragile_name("Windy"), 2)
    env.reset()
    env.set_parameters(BLOWN)
    env.step(actions(0))
    os.kill(pids(env)[1], signal.SIGKILL)
    aborted = env.step(actions(1)).aborted
    assert aborted is not None
    assert aborted.tolist() == [False, False, True, True]
    shown = np.asarray(env.step(actions(2)).obs)[:, 2]
    np.testing.assert_allclose(shown, BLOWN["wind"], rtol=1e-6)


def test_a_worker_that_is_gone_when_they_are_set_costs_its_lanes_a_step(make: Crowd) -> None:
    env = make(fragile_name("Windy"), 2)
    env.reset()
    env.step(actions(0))
    os.kill(pids(env)[0], signal.SIGKILL)
    env.set_parameters(BLOWN)
    aborted = env.step(actions(1)).aborted
    assert aborted is not None
    assert aborted.tolist() == [True, True, False, False]
    shown = np.asarray(env.step(actions(2)).obs)[:, 2]
    np.testing.assert_allclose(shown, BLOWN["wind"], rtol=1e-6)
    assert env.faults.aborted == LANES // 2


@pytest.mark.parametrize("num_workers", [None, 2])
def test_an_unknown_parameter_is_named_with_those_there_are(make: Crowd, num_workers: int | None) -> None:
    env = make(fragile_name("Windy"), num_workers)
    env.reset()
    with pytest.raises(EnvError, match=r"has no parameter 'gravity'; it has .*wind") as refused:
        env.set_parameters({"gravity": 1.0})
    assert refused.value.code == "E0521"


class Resets:
    """Notes when it is told that lanes begin anew, and which get a wind for it."""

    def __init__(self) -> None:
        self.told: list[list[int]] = []
        self.blown: list[list[int]] = []

    def __call__(self, env: LaneEnv, lanes: np.ndarray) -> None:
        self.blown.append(lanes.tolist())
        env.set_parameters({"wind": 0.125 * len(self.blown)}, lanes)

    def reset(self, lanes: np.ndarray) -> None:
        self.told.append(lanes.tolist())


def test_lanes_of_a_worker_that_was_killed_begin_anew_for_events_too(make: Crowd) -> None:
    below, resets, ages = make(fragile_name("Windy"), 2), Resets(), []
    cfg = {
        "resets": {"func": resets, "mode": "reset"},
        "ages": {
            "func": lambda env, lanes: ages.append(lanes.tolist()),
            "mode": "interval",
            "interval_step": 3,
            "count_from": "episode",
        },
    }
    env = with_events(below, cfg, Rng(0))
    env.reset()
    env.step(actions(0))
    os.kill(pids(below)[1], signal.SIGKILL)
    aborted = env.step(actions(1)).aborted
    assert aborted is not None
    assert aborted.tolist() == [False, False, True, True]
    assert resets.told == resets.blown == [[0, 1, 2, 3], [2, 3]]
    shown = np.asarray(env.step(actions(2)).obs)[:, 2]
    np.testing.assert_allclose(shown, [0.125, 0.125, 0.25, 0.25], rtol=1e-6)
    # Third step of the lanes that went on; the others are in the first of their new episode.
    assert ages == [[0, 1]]
