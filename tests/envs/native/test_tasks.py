"""Every native task gives, to the last bit, what Gymnasium's own environment gives."""

from __future__ import annotations

from typing import Any

import pytest

from quintain.errors import SettingsError
from tests.envs.native.rivals import NAMES, first_difference, gymnasium_lanes, native, with_attributes

# The compiler takes seconds for Acrobot when nothing is kept yet.
QUICK = [pytest.param(name, marks=pytest.mark.slow if name == "Acrobot-v1" else ()) for name in NAMES]


@pytest.mark.parametrize("name", QUICK)
def test_steps_equal_gymnasiums(name: str) -> None:
    found, _ = first_difference(native(name, 3), gymnasium_lanes(name, 3), name, 300)
    assert found == ""


@pytest.mark.parametrize("name", QUICK)
def test_spaces_and_time_limit_are_gymnasiums(name: str) -> None:
    mine, theirs = native(name, 1), gymnasium_lanes(name, 1)
    assert mine.spec == theirs.spec
    assert mine.lanes[-1] == theirs.envs[0].spec.max_episode_steps
    assert mine.task.frames_per_second == theirs.envs[0].metadata["render_fps"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2**40])
@pytest.mark.parametrize("name", NAMES)
def test_thousands_of_steps_equal_gymnasiums(name: str, seed: int) -> None:
    found, counts = first_difference(native(name, 6, seed), gymnasium_lanes(name, 6, seed), name, 2500)
    assert found == ""
    # Random pushes keep no pole up for 200 steps, and nothing ends a pendulum's episode but its time.
    assert counts["truncated"] > 0 or name.startswith("CartPole")
    assert counts["terminated"] > 0 or name == "Pendulum-v1"


CHANGES: dict[str, list[dict[str, Any]]] = {
    "Acrobot-v1": [
        {"book_or_nips": "nips", "dt": 0.1},
        {"LINK_LENGTH_1": 1.3, "LINK_MASS_1": 0.7, "LINK_MASS_2": 1.1, "LINK_COM_POS_1": 0.6},
        {"LINK_COM_POS_2": 0.4, "LINK_MOI": 0.9, "MAX_VEL_1": 3.0, "MAX_VEL_2": 5.0},
    ],
    "CartPole-v1": [
        {"gravity": 12.1, "masscart": 0.7, "masspole": 0.3, "length": 0.9, "force_mag": 7.0},
        {"tau": 0.01, "kinematics_integrator": "semi-implicit euler", "x_threshold": 0.3},
        {"theta_threshold_radians": 0.1},
    ],
    "MountainCar-v0": [
        {"min_position": -1.0, "max_position": 0.5, "max_speed": 0.05, "goal_position": 0.2},
        {"goal_velocity": 0.01, "force": 0.002, "gravity": 0.002},
    ],
    "MountainCarContinuous-v0": [
        {"min_action": -0.3, "max_action": 0.7, "power": 0.003, "max_speed": 0.05},
        {"min_position": -1.0, "max_position": 0.4, "goal_position": 0.2, "goal_velocity": 0.01},
    ],
    "Pendulum-v1": [{"max_speed": 5.0, "max_torque": 1.5, "dt": 0.03}, {"g": 7.7, "m": 1.7, "l": 0.6}],
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "change"), [(name, change) for name, all_of in CHANGES.items() for change in all_of])
def test_changed_parameters_do_what_gymnasiums_attributes_do(name: str, change: dict[str, Any]) -> None:
    theirs = gymnasium_lanes(name, 4, change=with_attributes(**change))
    assert first_difference(native(name, 4, kwargs=change), theirs, name, 400)[0] == ""
    assert first_difference(native(name, 4), gymnasium_lanes(name, 4, change=with_attributes(**change)), name, 400)[0]


def test_every_parameter_is_one_of_gymnasiums_and_is_tried() -> None:
    for name, all_of in CHANGES.items():
        tried = {parameter for change in all_of for parameter in change} | {"sutton_barto_reward"}
        task, theirs = native(name, 1).task, gymnasium_lanes(name, 1).envs[0].unwrapped
        assert set(task.parameters) - {"sutton_barto_reward"} == tried - {"sutton_barto_reward"}
        for parameter, default in task.parameters.items():
            if parameter != "sutton_barto_reward":
                assert getattr(theirs, parameter) == (default[0] if isinstance(default, tuple) else default)


def test_the_original_reward_of_cartpole() -> None:
    theirs = gymnasium_lanes("CartPole-v1", 3, change=with_attributes(_sutton_barto_reward=True))
    mine = native("CartPole-v1", 3, kwargs={"sutton_barto_reward": True})
    found, counts = first_difference(mine, theirs, "CartPole-v1", 200)
    assert (found, counts["terminated"] > 0) == ("", True)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"gravty": 9.8}, 'unknown parameter "gravty" of a native environment; did you mean "gravity"?'),
        ({"wind": 1.0}, "it has gravity, masscart"),
        ({"gravity": "much"}, "parameter gravity of a native environment: found 'much', expected a finite number"),
        ({"gravity": float("nan")}, "expected a finite number"),
        ({"gravity": True}, "expected a finite number"),
        ({"kinematics_integrator": "leapfrog"}, "expected one of euler, semi-implicit euler"),
        ({"sutton_barto_reward": "yes"}, "expected true or false"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(kwargs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as refused:
        native("CartPole-v1", 1, kwargs=kwargs)
    assert sentence in refused.value.message
