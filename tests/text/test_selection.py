"""The arithmetic of expert iteration, by hand, and the order of data."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from quintain.core.rng import Rng
from quintain.data.nested_arrays import (
    NestedArrayDict,
    concatenate_nested_array_dicts,
    stack_nested_array_dicts,
    string_array,
)
from quintain.text.expert_iteration import replacement_proportion, select, selection_weights
from quintain.text.prompts import Prompts
from quintain.text.protocols import make_protocol, speakers
from quintain.text.sampling import TextEnvironment
from quintain.text.scenario import point_of
from quintain.text.settings import ExpertIterationSelectionSettings, ProtocolSettings, TextRlSettings


def weighted(**changes: object) -> ExpertIterationSelectionSettings:
    return ExpertIterationSelectionSettings.model_validate(
        {"rollout_selection_method": "weighted_sampling", "weighting_epsilon": 0.0, **changes}
    )


def test_the_threshold_is_included() -> None:
    chosen = select(ExpertIterationSelectionSettings(reward_threshold=0.9), np.array([0.9, 0.89, 1.0]), None)  # type: ignore[arg-type]
    assert chosen.tolist() == [0, 2]


def test_weights_above_the_smallest_reward() -> None:
    # Above -1: 0, 1, 3, in all 4.
    assert selection_weights(weighted(), np.array([-1.0, 0.0, 2.0])).tolist() == [0.0, 0.25, 0.75]


def test_weights_above_a_minimum() -> None:
    # max(r, 1) - 1: 0, 0, 1, 3.
    found = selection_weights(weighted(weighting_minimum=1.0), np.array([-1.0, 1.0, 2.0, 4.0]))
    assert found.tolist() == [0.0, 0.0, 0.25, 0.75]


def test_epsilon_is_shared_equally() -> None:
    # (0 + 0.5) / 2 and (1 + 0.5) / 2, for an epsilon of 1 over two rollouts.
    found = selection_weights(weighted(weighting_epsilon=1.0), np.array([0.0, 1.0]))
    assert found.tolist() == [0.25, 0.75]


def test_equal_rewards_are_drawn_alike() -> None:
    assert selection_weights(weighted(), np.array([1.0, 1.0, 1.0, 1.0])).tolist() == [0.25] * 4
    assert len(select(weighted(), np.ones(8), np.random.default_rng(0))) == 4


def test_without_replacement_no_more_than_have_weight() -> None:
    found = select(
        weighted(weighting_use_replacement=False, weighting_sample_size_factor=1.0),
        np.array([0.0, 0.0, 1.0, 2.0]),
        np.random.default_rng(0),
    )
    assert found.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("annealing", "expected"),
    [("none", [0.5, 0.5, 0.5]), ("linear", [0.5, 0.25, 0.0]), ("exponential", [0.5, 0.375, 0.28125])],
)
def test_replacement_is_annealed(annealing: str, expected: list[float]) -> None:
    settings = TextRlSettings.model_validate(
        {
            "verifier_guess_replacement_proportion": 0.5,
            "verifier_guess_replacement_annealing": annealing,
            "verifier_guess_replacement_annealing_rate": 0.25,
        }
    )
    assert [replacement_proportion(settings, each) for each in range(3)] == expected


def test_an_epoch_covers_the_data_once_whatever_the_iteration() -> None:
    points = [point_of({"question": "q", "solution": str(each), "y": 1, "id": str(each)}) for each in range(7)]
    env = TextEnvironment("train", points, 3, None, None, None, None, None, Rng(1))  # type: ignore[arg-type]
    seen = [env.point_at(iteration, index).id for iteration in range(14) for index in range(3)]
    for epoch in range(6):
        assert sorted(seen[7 * epoch : 7 * epoch + 7]) == [str(each) for each in range(7)]
    assert Counter(seen) == {str(each): 6 for each in range(7)}
    assert seen[:7] != seen[7:14]


def test_turns_of_the_settings() -> None:
    def turns(name: str, rounds: int, **changes: object) -> list[tuple[str, ...]]:
        protocol = make_protocol(ProtocolSettings.model_validate({"name": name, **changes}))
        return [tuple(speakers(protocol, each, 0)) for each in range(rounds)]

    v, p, p0, p1 = "verifier", "prover", "prover0", "prover1"
    assert turns("nip", 3) == [(v,), (p,), (v,)]
    assert turns("nip", 3, verifier_first=False) == [(p,), (v,), (p,)]
    assert turns("adp", 2) == [(p,), (v,)]
    assert turns("debate", 3) == [(v,), (p0, p1), (v,)]
    assert turns("mnip", 4, sequential=True, prover0_first=False) == [(v,), (p1,), (p0,), (v,)]


def test_decisions_are_anchored_and_only_of_verifiers() -> None:
    protocol = make_protocol(ProtocolSettings.model_validate({"name": "nip", "max_message_rounds": 3}))
    prompts = Prompts(protocol, None, {"prover": 9, "verifier": 9})
    assert prompts.parse("verifier", 0, 0, "Let me think.\ndecision: ACCEPT") == ({}, 1)
    assert prompts.parse("verifier", 0, 0, "My decision: accept") == ({"main": "My decision: accept"}, 2)
    assert prompts.parse("prover", 1, 0, "Decision: accept") == ({"main": "Decision: accept"}, 2)
    assert prompts.parse("verifier", 2, 0, "I do not know.") is None
    assert prompts.parse("verifier", 0, 0, "  ") is None


def test_a_verifier_speaks_to_one_of_two_provers() -> None:
    protocol = make_protocol(ProtocolSettings.model_validate({"name": "mnip"}))
    prompts = Prompts(protocol, None, dict.fromkeys(protocol.agent_names, 9))
    found = prompts.parse("verifier", 0, 0, "Question for prover0: why?\nQuestion for prover1: how?")
    assert found == ({"prover0_channel": "why?", "prover1_channel": "how?"}, 2)


def test_nested_arrays() -> None:
    one = NestedArrayDict({"y": np.array([0, 1, 1]), "agents": {"said": string_array(["a", None, "c"])}}, 3)
    assert one["agents", "said"].tolist() == ["a", None, "c"]  # type: ignore[union-attr]
    assert one["agents"]["said"].tolist() == ["a", None, "c"]  # type: ignore[index,union-attr]
    assert one[[2, 0]].array("agents", "said").tolist() == ["c", "a"]
    assert one[one.array("y") == 1].batch_size == (2,)
    assert concatenate_nested_array_dicts([one, one]).batch_size == (6,)
    assert stack_nested_array_dicts([one, one], 1).array("y").tolist() == [[0, 0], [1, 1], [1, 1]]
    assert one.zeros_like().array("agents", "said").tolist() == [None, None, None]
    with pytest.raises(ValueError, match="shape"):
        one["z"] = np.zeros(2)
    with pytest.raises(ValueError, match="would be an array"):
        one["agents"] = np.zeros(3)
    with pytest.raises(KeyError, match="no x in"):
        one["x"]
