"""Every fault in the zoo is found, named in one line, and comes with a fix; sound environments have none."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.envs.base import Env
from quintain.envs.check.checks import Finding, check_env, check_lanes
from quintain.envs.settings import GymSettings
from quintain.testing import Episode, ScriptedEnv
from tests.envs import zoo

PROBLEMS = {
    "OldReset": ("reset", "takes no seed"),
    "ResetWithoutInfo": ("reset", "returns a ndarray instead of (obs, info)"),
    "OldStep": ("step", "returns a tuple of 4 instead of five"),
    "RaisesInReset": ("reset", "reset() raises OSError: no such level"),
    "RaisesLater": ("step", "step() raises ValueError: lost a wheel"),
    "WrongShape": ("observations", "the first observation has shape (2,), declared (3,)"),
    "WrongShapeLater": ("observations", "observation 5 has shape (2,), declared (3,)"),
    "WrongType": ("observations", "is float32, declared uint8"),
    "OutOfBounds": ("observations", "outside the declared [-0.5, 0.5]"),
    "NotANumber": ("observations", "observation 4 is not finite: nan"),
    "MissingEntry": ("observations", "has no 'b', which is declared"),
    "NoReward": ("rewards", "step 1 returns None as reward"),
    "RewardArray": ("rewards", "a reward of shape (1,)"),
    "NoInfo": ("step", "info is not a dict"),
    "OldTimeLimit": ("ends", "TimeLimit.truncated"),
    "IgnoresSeed": ("seeds", "differ at the first observation"),
    "DrawsGlobally": ("seeds", "two environments with the same seed and actions differ at step 1"),
    "Remembers": ("seeds", "an environment that was played before and a new one"),
    "GraphSpace": ("spaces", "which is not supported"),
    "ResetsItself": ("autoreset", "resets behind the caller's back"),
    "MaskOfAnotherSize": ("masks", "an action mask of 3 options, expected 2"),
}
REMARKS = {
    "EndsByNumbers": ("warning", "ends", "is a int, such as 0"),
    "TimeIsAnEnd": ("warning", "ends", "terminated after exactly 20 steps, which looks like a time limit"),
    "NeverEnds": ("note", "ends", "no episode ended within 300 steps"),
    "TouchesGlobally": ("warning", "process", "draws from numpy's global generator"),
    "TouchesPython": ("warning", "process", "draws from Python's global generator"),
    "Wanders": ("warning", "process", "changes the working directory, to /"),
    "TakesSignals": ("warning", "process", "takes over SIGINT and SIGTERM"),
    "Prints": ("note", "process", "it prints"),
    "OtherFloats": ("note", "dtypes", "observation is float64, declared float32"),
    "HugeRewards": ("warning", "scale", "rewards reach"),
    "NoRewards": ("warning", "scale", "every one of 300 rewards was 0"),
    "HugeObservations": ("warning", "scale", "obs reaches"),
    "Unbounded": ("warning", "spaces", "action is not bounded"),
    "Lopsided": ("warning", "spaces", "action is not symmetric around 0"),
    "FloatImages": ("warning", "dtypes", "looks like an image of float32"),
    "CannotClose": ("warning", "close", "close() raises RuntimeError: the door is stuck"),
}


def look(name: str, **options: Any) -> list[Finding]:
    return check_env(GymSettings(id=f"tests.envs.zoo:{name}"), num_steps=300, **{"in_worker": False, **options})


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_fault_is_found_with_its_fix(name: str) -> None:
    found = [finding for finding in look(name) if finding.level == "problem"]
    check, words = PROBLEMS[name]
    assert [finding.check for finding in found] == [check]
    assert words in found[0].what
    assert found[0].fix
    assert "\n" not in str(found[0])


@pytest.mark.parametrize("name", REMARKS)
def test_what_is_unwise_is_said_and_is_no_fault(name: str) -> None:
    found = look(name)
    level, check, words = REMARKS[name]
    assert not [finding for finding in found if finding.level == "problem"]
    [said] = [finding for finding in found if (finding.level, finding.check) == (level, check)]
    assert words in said.what


@pytest.mark.parametrize("name", ["Wanders", "TakesSignals", "Prints"])
def test_the_process_is_what_it_was_afterwards(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = os.getcwd(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    look(name)
    assert (os.getcwd(), signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    assert capsys.readouterr().out == ""


def test_every_animal_of_the_zoo_is_shown() -> None:
    found = [each for each in vars(zoo).values() if isinstance(each, type) and each.__module__ == zoo.__name__]
    animals = {name for name, each in vars(zoo).items() if each in found}
    assert animals == {*PROBLEMS, *REMARKS, "OnlyHere"}


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "tests.envs.fragile:Walk"])
def test_a_sound_environment_has_no_faults_and_is_looked_at_from_all_sides(name: str) -> None:
    found = check_env(GymSettings(id=name), num_steps=600)
    assert {finding.level for finding in found} <= {"ok", "note"}, [str(finding) for finding in found]
    looked_at = {
        "creation",
        "autoreset",
        "spaces",
        "observations",
        "ends",
        "seeds",
        "scale",
        "process",
        "worker",
        "speed",
    }
    assert looked_at | {"process", "worker", "speed"} <= {finding.check for finding in found}
    [speed] = [finding for finding in found if finding.check == "speed"]
    assert "steps/s" in speed.what


def test_what_cannot_be_made_in_a_worker_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo.OnlyHere, "is_here", True)
    [found] = [finding for finding in look("OnlyHere", in_worker=True) if finding.level == "problem"]
    assert found.check == "worker"
    assert "cannot be made in a worker" in found.what
    assert "no licence in this process" in found.what


def test_what_cannot_be_made_at_all_is_one_finding() -> None:
    [found] = check_env(GymSettings(id="tests.envs.fragile:CannotBeMade"))
    assert (found.level, found.check) == ("problem", "creation")
    assert "OSError: no display" in found.what


class Forgetful(ScriptedEnv):
    """Loses where it is when it is saved."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "step_of_episode": np.zeros_like(state["step_of_episode"])})


class Misshapen(ScriptedEnv):
    def reset(self, lanes: Any = None) -> Any:
        return super().reset(lanes)[:, :2]


@pytest.mark.parametrize(
    ("make", "check", "words"),
    [
        (ScriptedEnv, None, ""),
        (Forgetful, "state", "goes another way"),
        (Misshapen, "observations", "reset() returns obs of shape (2, 2), declared (2, 3)"),
    ],
)
def test_environments_that_step_all_their_lanes_are_looked_over_too(make: Any, check: str | None, words: str) -> None:
    def two_lanes(num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
        made: Env = make(*[[Episode([1.0, 2.0, 3.0])]] * num_lanes)
        return made

    found = [finding for finding in check_lanes(two_lanes) if finding.level == "problem"]
    assert [finding.check for finding in found] == ([] if check is None else [check])
    assert all(words in finding.what for finding in found)


def test_a_registered_native_environment_is_looked_over() -> None:
    settings = GymSettings(id="CartPole-v1", vectorization="native")

    def make(num_lanes: int, rng: Rng) -> Env:
        made: Env = registry.get("env", "gym").load()(settings, num_lanes, rng)
        return made

    assert [str(finding).split()[0] for finding in check_lanes(make)] == ["ok", "ok", "ok"]
