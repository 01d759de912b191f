"""Whatever agents' environments return becomes arrays, or a sentence that says what is wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quintain.data.spec import TupleSpec, box, multi_discrete
from quintain.envs.agents.boundary import Boundary, core_spec
from quintain.envs.agents.specs import ActionSpec, ActionTuple, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps
from quintain.errors import EnvError, NonFiniteError, SpecMismatch

BALL = BehaviorSpec([ObservationSpec((2,))], ActionSpec.create_discrete((2, 3)))


def boundary(described: BehaviorSpec = BALL) -> Boundary:
    return Boundary("Ball", core_spec("Ball", described))


def steps(**changes: Any) -> SimpleNamespace:
    """Returns two agents as lists, the way that toy environments write them."""
    rows: dict[str, Any] = {
        "obs": [[[1.0, 2.0], [3.0, 4.0]]],
        "reward": [0.5, -0.5],
        "agent_id": [11, 4],
        "action_mask": None,
        "group_id": [0, 3],
        "group_reward": [0.0, 2.0],
        "interrupted": [True, False],
    }
    return SimpleNamespace(**{**rows, **changes})


def test_specs_become_those_of_policies() -> None:
    assert core_spec("a", BALL).obs == box(2)
    assert core_spec("a", BALL).action == multi_discrete(2, 3)
    assert core_spec("a", BALL).mask_size == 5
    hybrid = BehaviorSpec([ObservationSpec((2,)), ObservationSpec((3, 8, 8))], ActionSpec.create_hybrid(2, (4,)))
    assert core_spec("a", hybrid).obs == TupleSpec((box(2), box(3, 8, 8)))
    assert core_spec("a", hybrid).action == TupleSpec((box(2, low=-1.0, high=1.0), multi_discrete(4)))


@pytest.mark.parametrize(
    ("described", "said"),
    [
        (BehaviorSpec([], ActionSpec.create_continuous(1)), "observes nothing"),
        (BehaviorSpec([ObservationSpec((2, 0))], ActionSpec.create_continuous(1)), "may be empty"),
        (BehaviorSpec([ObservationSpec((2,))], ActionSpec(0, ())), "at least one action"),
        (BehaviorSpec([ObservationSpec((2,))], ActionSpec(0, (2, 0))), "at least one action"),
        (SimpleNamespace(shape=(2,)), "expected a spec with observation_specs and action_spec"),
    ],
)
def test_specs_that_no_policy_fits_are_refused(described: Any, said: str) -> None:
    with pytest.raises(SpecMismatch, match=said):
        core_spec("Ball", described)


def test_lists_become_arrays() -> None:
    decided = boundary().decisions(steps())
    assert decided.ids.tolist() == [11, 4]
    assert decided.obs["obs"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert decided.obs["obs"].dtype == decided.reward.dtype == np.float32
    assert decided.group_id.tolist() == [0, 3]
    assert decided.group_reward.tolist() == [0.0, 2.0]
    assert decided.mask is not None
    assert decided.mask.all()
    ended = boundary().ends(steps())
    assert ended.interrupted is not None
    assert ended.interrupted.tolist() == [True, False]


def test_nobody_may_be_present() -> None:
    for obs in ([], None, [[]], [np.zeros((0, 2))]):
        empty = steps(obs=obs, reward=[], agent_id=[], group_id=[], group_reward=[], interrupted=[])
        assert boundary().decisions(empty).obs["obs"].shape == (0, 2)
        assert len(boundary().ends(empty)) == 0
    assert len(boundary().decisions(DecisionSteps.empty(BALL))) == 0
    assert len(boundary().ends(TerminalSteps.empty(BALL))) == 0


def test_one_array_may_stand_for_a_list_of_one() -> None:
    assert boundary().decisions(steps(obs=np.array([[1.0, 2.0], [3.0, 4.0]]))).obs["obs"].shape == (2, 2)


def test_agents_may_have_no_groups() -> None:
    without = steps()
    del without.group_id, without.group_reward
    assert boundary().decisions(without).group_id.tolist() == [0, 0]


@pytest.mark.parametrize(
    "mask",
    [
        [np.array([[True, False], [False, False]]), np.array([[False, False, True], [False, False, False]])],
        np.array([[True, False, False, False, True], [False] * 5]),
        [np.array([[1, 0, 0, 0, 1], [0] * 5])],
        [[[True, False], [False, False]], [[False, False, True], [False] * 3]],
    ],
    ids=["branches", "one array", "a list of one", "lists"],
)
def test_masks_say_what_is_allowed(mask: Any) -> None:
    found = boundary().decisions(steps(action_mask=mask)).mask
    assert found is not None
    assert found.tolist() == [[False, True, True, True, False], [True] * 5]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs": [[[1.0, 2.0]]]}, r"obs of shape \(1, 2\), expected \(2, 2\)"),
        ({"obs": []}, "0 observations with decision steps, declared 1"),
        ({"obs": [[["a", "b"], ["c", "d"]]]}, "no array of numbers"),
        ({"obs": [np.array([[1.0, 2.0], [3.0, 4.0]], object)]}, "no array of numbers"),
        ({"reward": [1.0]}, "1 of reward for 2 agents"),
        ({"reward": None}, "steps without reward"),
        ({"agent_id": [4, 4]}, "name an agent twice: 4"),
        ({"agent_id": None}, "without whole numbers in agent_id"),
        ({"group_id": [1, 2, 3]}, "3 of group_id for 2 agents"),
    ],
)
def test_what_was_not_declared_is_refused_with_a_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvError, match=said) as caught:
        boundary().decisions(steps(**changes))
    assert caught.value.code == "E0511"
    assert "'Ball'" in caught.value.message


@pytest.mark.parametrize("interrupted", [["false", "false"], [0.5, 1.0], [None, True], [2, 0]])
def test_ends_that_are_no_truth_values_are_refused(interrupted: Any) -> None:
    with pytest.raises(EnvError, match=r"returned interrupted as .*, expected True or False") as caught:
        boundary().ends(steps(interrupted=interrupted))
    assert caught.value.code == "E0511"


@pytest.mark.parametrize(
    ("mask", "said"),
    [(np.zeros((2, 4)), r"of \[4\] options, expected \[2, 3\]"), (np.ones((2, 5)), "forbids every option of branch 0")],
)
def test_masks_that_cannot_be_are_refused(mask: Any, said: str) -> None:
    with pytest.raises(EnvError, match=said) as caught:
        boundary().decisions(steps(action_mask=mask))
    assert caught.value.code == "E0515"


@pytest.mark.parametrize(
    "changes", [{"obs": [[[1.0, np.nan], [3.0, 4.0]]]}, {"reward": [np.inf, 0.0]}, {"group_reward": [np.nan, 0.0]}]
)
def test_what_is_not_finite_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(NonFiniteError, match="not finite in row 0"):
        boundary().decisions(steps(**changes))


def test_actions_have_as_many_rows_of_nothing() -> None:
    assert ActionTuple(continuous=np.zeros((3, 2))).discrete.shape == (3, 0)
    assert ActionTuple(discrete=np.zeros((3, 2))).continuous.shape == (3, 0)
    assert ActionTuple().continuous.shape == (0, 0)
    spec = ActionSpec.create_hybrid(2, (3,))
    drawn = spec.random_action(50, np.random.default_rng(0))
    assert np.abs(drawn.continuous).max() <= 1.0
    assert set(drawn.discrete[:, 0].tolist()) == {0, 1, 2}
    assert spec._validate_action(drawn, 50, "Ball") is drawn
    with pytest.raises(EnvError, match=r"numbers of shape \(50, 2\), expected \(49, 2\)"):
        spec._validate_action(drawn, 49, "Ball")


def test_steps_are_found_by_agent() -> None:
    decided = DecisionSteps([np.array([[1.0, 2.0], [3.0, 4.0]])], np.array([0.5, 1.5]), np.array([7, 9]))
    assert decided[9].obs[0].tolist() == [3.0, 4.0]
    assert (decided[9].reward, decided[9].group_id, decided[9].action_mask) == (1.5, 0, None)
    assert list(decided) == [7, 9]
    assert decided.agent_id_to_index == {7: 0, 9: 1}
    assert 8 not in decided
    with pytest.raises(KeyError, match="agent 8 is not among the 2 agents"):
        decided[8]
    ended = TerminalSteps([np.array([[1.0, 2.0]])], np.array([2.0]), np.array([True]), np.array([3]))
    assert ended[3].interrupted
