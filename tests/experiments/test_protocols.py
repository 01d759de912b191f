"""Interaction protocols against tables written by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quintain.errors import SettingsError
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.protocols.base import DeterministicSingleVerifierProtocolHandler, ProtocolHandler
from quintain.experiments.registry import build_protocol_handler, register_protocol_handler


def handler(name: str, **given: Any) -> ProtocolHandler:
    return build_protocol_handler(HyperParameters("graph_isomorphism", "vanilla_ppo", "x", name, **given))


# Every reward differs from every other, so that none can stand for another.
PRICES = {
    "prover_reward": 3.0,
    "verifier_reward": 5.0,
    "verifier_incorrect_penalty": -7.0,
    "verifier_terminated_penalty": -11.0,
    "verifier_no_guess_reward": 0.5,
}
# (decision, label) -> the verifier's reward; 2 is the round limit.
VERIFIER = {(0, 0): 5.0, (0, 1): -7.0, (1, 0): -7.0, (1, 1): 5.0, (2, 0): -11.0, (2, 1): -11.0}
# protocol -> decision -> rewards of the provers, in the order of their names.
PROVERS: dict[str, dict[int, list[float]]] = {
    "nip": {0: [0.0], 1: [3.0], 2: [0.0]},
    "adp": {0: [0.0], 1: [3.0], 2: [0.0]},
    "debate": {0: [3.0, 0.0], 1: [0.0, 3.0], 2: [0.0, 0.0]},
    "merlin_arthur": {0: [3.0, 0.0], 1: [0.0, 3.0], 2: [0.0, 0.0]},
    "mnip": {0: [0.0, 0.0], 1: [3.0, 3.0], 2: [0.0, 0.0]},
    "solo_verifier": {0: [], 1: [], 2: []},
    "multi_channel_test": {0: [0.0] * 3, 1: [0.0] * 3, 2: [0.0] * 3},
}
PROVER_NAMES: dict[str, list[str]] = {
    "nip": ["prover"],
    "adp": ["prover"],
    "solo_verifier": [],
    "multi_channel_test": ["prover0", "prover1", "prover2"],
}


@pytest.mark.parametrize("name", PROVERS)
@pytest.mark.parametrize("label", [0, 1])
@pytest.mark.parametrize("decision", [0, 1, 2])
def test_rewards_at_an_end(name: str, decision: int, label: int) -> None:
    names = PROVER_NAMES.get(name, ["prover0", "prover1"])
    verifier = VERIFIER[decision, label]
    expected = {**dict(zip(names, PROVERS[name][decision], strict=True)), "verifier": verifier}
    assert handler(name, protocol_common=PRICES).rewards(decision, label) == expected
    shared = {**dict.fromkeys(names, verifier), "verifier": verifier}
    assert handler(name, protocol_common={**PRICES, "shared_reward": True}).rewards(decision, label) == shared


@pytest.mark.parametrize(
    ("name", "given", "turns"),
    [
        ("nip", {}, ["v", "p", "v", "p"]),
        ("nip", {"protocol_common": {"verifier_first": False}}, ["p", "v", "p", "v"]),
        ("adp", {}, ["p", "v"]),
        ("debate", {}, ["v", "01", "v", "01"]),
        ("debate", {"debate_protocol": {"sequential": True}}, ["v", "0", "1", "v", "0"]),
        ("mnip", {"mnip_protocol": {"sequential": True, "prover0_first": False}}, ["v", "1", "0", "v"]),
        (
            "mnip",
            {"mnip_protocol": {"sequential": True}, "protocol_common": {"verifier_first": False}},
            ["0", "1", "v", "0"],
        ),
        ("solo_verifier", {}, ["v", ""]),
        ("multi_channel_test", {}, ["v", "01", "12", "v"]),
    ],
)
def test_turns(name: str, given: dict[str, Any], turns: Sequence[str]) -> None:
    protocol = handler(name, **given)
    for number, expected in enumerate(turns):
        active = "".join(
            "v" if agent == "verifier" else agent.removeprefix("prover") or "p"
            for agent in protocol.agent_names
            if protocol.is_active(agent, number, seed=0)
        )
        assert active == expected, number


def test_the_seed_chooses_merlin() -> None:
    protocol = handler("merlin_arthur")
    assert protocol.get_active_agents_mask_from_rounds_and_seed([0, 0, 1], [4, 7, 7]) == [
        [[True], [False], [False]],
        [[False], [True], [False]],
        [[False], [False], [True]],
    ]
    assert protocol.get_verifier_guess_mask_from_rounds_and_seed([0, 1], [0, 0]) == [False, True]


def test_provers_of_mnip_speak_and_hear_in_their_own_channel_only() -> None:
    debate, mnip = handler("debate"), handler("mnip")
    assert mnip.agent_channel_visibility_mask == [[True, False], [False, True], [True, True]]
    assert debate.agent_channel_visibility_mask == [[True, True]] * 3
    for protocol in (debate, mnip):
        assert protocol.turn_table()[0][0] == [[False, False], [False, False], [True, True]]
        assert protocol.turn_table()[1][1] == [[True, False], [False, True], [False, False]]


def test_three_rounds_with_an_end_by_decision() -> None:
    protocol = handler("nip", protocol_common=PRICES)
    one, two, three = (protocol.step(number, decision, 1) for number, decision in enumerate([2, 1, 1]))
    # Round 1 is the prover's: its decision counts for nothing.
    assert [each.is_terminated for each in (one, two, three)] == [False, False, True]
    assert [dict(each.rewards) for each in (one, two, three)] == [
        {"prover": 0.0, "verifier": 0.5},
        {"prover": 0.0, "verifier": 0.0},
        {"prover": 3.0, "verifier": 5.0},
    ]
    assert three.is_decided
    assert three.decision == 1


def test_the_round_limit_ends_without_a_decision() -> None:
    protocol = handler("nip", protocol_common=PRICES, nip_protocol={"max_message_rounds": 4})
    last = protocol.step(3, 0, 0)
    assert (last.is_decided, last.is_terminated, last.decision) == (False, True, 2)
    assert last.rewards == {"prover": 0.0, "verifier": -11.0}
    assert protocol.max_verifier_questions == 1
    assert not protocol.step(2, 2, 0).is_terminated


def test_a_decision_before_the_minimum_does_not_count() -> None:
    protocol = handler("nip", nip_protocol={"min_message_rounds": 3})
    assert not protocol.step(0, 1, 1).is_terminated
    assert protocol.step(2, 1, 1).is_decided


@pytest.mark.parametrize(("force", "label", "verifier", "prover"), [
    ("zero", 1, -7.0, 0.0), ("zero", 0, 5.0, 0.0), ("one", 1, 5.0, 3.0), ("one", 0, -7.0, 3.0),
    ("y", 1, 5.0, 3.0), ("y", 0, 5.0, 0.0),
])  # fmt: skip
@pytest.mark.parametrize("decision", [0, 1])
def test_a_forced_guess_is_the_decision_that_is_paid(
    force: str, label: int, verifier: float, prover: float, decision: int
) -> None:
    protocol = handler("nip", protocol_common={**PRICES, "force_guess": force})
    assert protocol.step(0, decision, label).rewards == {"prover": prover, "verifier": verifier}
    assert not protocol.step(0, 2, label).is_terminated


def test_a_stance_is_paid_where_stances_are_drawn() -> None:
    protocol = handler("nip", protocol_common={**PRICES, "randomize_prover_stance": True})
    assert [protocol.rewards(decision, 1, stance=0)["prover"] for decision in (0, 1)] == [3.0, 0.0]


def test_tables_for_tensors_agree_with_steps() -> None:
    protocol = handler("debate", protocol_common=PRICES)
    table = protocol.outcome_table()
    assert table[0][0][1][0].rewards == {"prover0": 0.0, "prover1": 3.0, "verifier": -7.0}
    assert table[7][1][2][0].is_terminated
    assert not table[6][1][2][0].is_terminated


def test_wrong_values_are_refused() -> None:
    with pytest.raises(SettingsError, match="found decision 3"):
        handler("nip").step(0, 3, 1)


def test_a_protocol_of_ones_own_needs_a_decorator_and_one_method() -> None:
    @register_protocol_handler("adp_scratch_pad")
    class AdpScratchPad(DeterministicSingleVerifierProtocolHandler):
        agent_names = ("prover", "verifier")
        message_channel_names = ("main", "scratch_pad")
        max_message_rounds = 3
        min_message_rounds = 3
        agent_channel_visibility: Sequence[tuple[str, str]] = (
            ("prover", "main"),
            ("prover", "scratch_pad"),
            ("verifier", "main"),
        )

        def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
            turns = [("prover", "scratch_pad"), ("prover", "main"), ("verifier", "main")]
            return (agent_name, channel_name) == turns[round]

    protocol = handler("adp_scratch_pad")
    assert protocol.agent_channel_visibility_mask == [[True, True], [True, False]]
    assert protocol.step(2, 1, 1).rewards == {"prover": 1.0, "verifier": 1.0}
    assert protocol.agent_first_active_round("verifier") == 2

    @register_protocol_handler("deaf")
    class Deaf(AdpScratchPad):
        agent_channel_visibility = (("prover", "main"), ("verifier", "main"))

    with pytest.raises(SettingsError, match='speaks in round 0 in channel "scratch_pad", which it does not hear'):
        handler("deaf")
