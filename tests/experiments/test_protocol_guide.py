"""Protocols of a user's own by the methods of nip's guide to a new protocol, with only the root of imports changed."""

# ruff: noqa: RUF012 - the guide has lists as attributes of classes.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from quintain.compat.nip import HyperParameters, run_experiment
from quintain.compat.nip.parameters import SubParameters, register_parameter_class
from quintain.compat.nip.parameters.types import InteractionProtocolType
from quintain.compat.nip.protocols.main_protocols import MerlinArthurProtocol, NipProtocol
from quintain.compat.nip.protocols.protocol_base import (
    DeterministicSingleVerifierProtocolHandler,
    ProtocolHandler,
    SingleVerifierProtocolHandler,
)
from quintain.compat.nip.protocols.registry import build_protocol_handler, register_protocol_handler
from quintain.compat.nip.protocols.zero_knowledge import ZeroKnowledgeProtocol
from quintain.errors import SettingsError

RL = {"rollouts_per_iteration": 10, "num_iterations": 2, "num_test_iterations": 1, "minibatch_size": 10}


def params(protocol: str, **given: Any) -> Any:
    return HyperParameters("find_the_plus", "vanilla_ppo", "generated", protocol, rl=RL, **given)


@register_parameter_class
@dataclass
class NotebookParameters(SubParameters):
    """Parameters of a protocol."""

    has_notebook: bool = True


@register_protocol_handler("notebook")
class NotebookProtocol(DeterministicSingleVerifierProtocolHandler):
    """A prover speaks, a verifier may write to itself, and decides: names and signatures of the guide's example."""

    agent_names = ["verifier", "prover"]
    min_message_rounds = 2
    max_verifier_questions = 1
    channel_names = ["main", "notebook"]
    agent_channel_visibility = [("verifier", "main"), ("prover", "main"), ("verifier", "notebook")]

    @property
    def max_message_rounds(self) -> int:
        return 3 if self.has_notebook else 2

    @property
    def has_notebook(self) -> bool:
        return bool(self.hyper_params.notebook.has_notebook)

    def is_agent_active(self, agent_name: str, round_id: int, channel_name: str) -> bool:  # type: ignore[override]
        turns = [("prover", "main"), ("verifier", "notebook"), ("verifier", "main")]
        if not self.has_notebook:
            del turns[1]
        return (agent_name, channel_name) == turns[round_id]


@pytest.mark.parametrize("has_notebook", [True, False])
def test_turns_by_round(tmp_path: Path, has_notebook: bool) -> None:
    given = params("notebook", notebook={"has_notebook": has_notebook})
    assert "notebook" in InteractionProtocolType
    protocol = build_protocol_handler(given)
    assert list(protocol.message_channel_names) == ["main", "notebook"]
    assert protocol.max_verifier_questions == 1
    # [round][parity][agent][channel]
    first, *middle, last = [table[0] for table in protocol.turn_table()]
    assert first == [[False, False], [True, False]]
    assert middle == ([[[False, True], [False, False]]] if has_notebook else [])
    assert last == [[True, False], [False, False]]
    assert protocol.step(len(protocol.turn_table()) - 1, 1, 1).rewards == {"verifier": 1.0, "prover": 1.0}
    assert run_experiment(given, run_id="notes", output_dir=tmp_path).state == "finished"


def test_turns_by_a_mask_of_rounds_and_seeds() -> None:
    @register_protocol_handler("merlin_by_mask")
    class MerlinByMask(SingleVerifierProtocolHandler):
        agent_names = ["prover0", "prover1", "verifier"]
        max_message_rounds = 2
        min_message_rounds = 2
        max_verifier_questions = 1
        message_channel_names = ["main"]
        agent_channel_visibility = [("prover0", "main"), ("prover1", "main"), ("verifier", "main")]

        def get_active_agents_mask_from_rounds_and_seed(self, round_id: Any, seed: Any) -> torch.Tensor:
            mask = torch.zeros((*round_id.shape, 3, 1), dtype=torch.bool)
            mask[..., 0, 0] = (round_id == 0) & (seed % 2 == 0)
            mask[..., 1, 0] = (round_id == 0) & (seed % 2 == 1)
            mask[..., 2, 0] = round_id == 1
            return mask

        def can_agent_be_active(self, agent_name: str, round_id: int, channel_name: str) -> bool:  # type: ignore[override]
            return (agent_name == "verifier") == (round_id == 1)

    found, shipped = (build_protocol_handler(params(name)) for name in ("merlin_by_mask", "merlin_arthur"))
    assert isinstance(shipped, MerlinArthurProtocol)
    assert found.turn_table() == shipped.turn_table()
    assert [found.can_decide(number, 0) for number in (0, 1)] == [False, True]
    assert found.step(1, 1, 0, seed=1).rewards == {"prover0": 1.0, "prover1": 1.0, "verifier": -1.0}


class TwoJudges(ProtocolHandler):
    """Two verifiers and a prover in one room; the conversation ends when both verifiers say the same."""

    agent_names = ["prover", "verifier0", "verifier1"]
    max_message_rounds = 2
    min_message_rounds = 1
    max_verifier_questions = 1
    message_channel_names = ["main"]
    agent_channel_visibility = [("prover", "main"), ("verifier0", "main"), ("verifier1", "main")]

    def get_active_agents_mask_from_rounds_and_seed(self, round_id: Any, seed: Any) -> torch.Tensor:
        return torch.ones((*round_id.shape, 3, 1), dtype=torch.bool)

    def can_agent_be_active(self, agent_name: str, round_id: int, channel_name: str) -> bool:  # type: ignore[override]
        return True

    def get_verifier_guess_mask_from_rounds_and_seed(self, round_id: Any, seed: Any) -> torch.Tensor:
        return torch.ones_like(round_id, dtype=torch.bool)

    def step_interaction_protocol(self, env_td: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        one, other = env_td["agents", "decision"][..., 1], env_td["agents", "decision"][..., 2]
        done = env_td["done"] | ((one == other) & (one != 2))
        terminated = env_td["terminated"] | ((env_td["round"] >= self.max_message_rounds - 1) & ~done)
        reward = torch.zeros((*done.shape, 3))
        right = one == env_td["y"].squeeze(-1)
        reward[..., 1:] = torch.where(done, torch.where(right, 1.0, -1.0), 0.0)[..., None]
        reward[..., 0] = (done & (one == 1)).float()
        return done, env_td["agents", "done"] | done[..., None], terminated, reward

    def reward_mid_point_estimate(self, agent_name: str) -> float:
        return 0.5 if agent_name == "prover" else 0.0


def test_a_step_of_ones_own(tmp_path: Path) -> None:
    register_protocol_handler("two_judges")(TwoJudges)
    protocol = build_protocol_handler(params("two_judges"))
    table = protocol.outcome_table()
    # Decisions of both verifiers are digits to the base 3: accept and accept is 4, accept and go on 5, reject twice 0.
    agree, differ, wrong = table[0][0][4][1], table[0][0][5][1], table[0][1][0][1]
    assert (agree.is_terminated, agree.decision) == (True, 1)
    assert agree.rewards == {"prover": 1.0, "verifier0": 1.0, "verifier1": 1.0}
    assert (differ.is_terminated, differ.rewards) == (False, dict.fromkeys(protocol.agent_names, 0.0))
    assert wrong.rewards == {"prover": 0.0, "verifier0": -1.0, "verifier1": -1.0}
    limit = table[1][0][5][1]
    assert (limit.is_decided, limit.is_terminated, limit.decision) == (False, True, 2)
    assert run_experiment(params("two_judges"), run_id="judges", output_dir=tmp_path).state == "finished"


def test_a_step_that_adds_to_the_base_classs() -> None:
    @register_protocol_handler("paid_to_talk")
    class PaidToTalk(NipProtocol):
        def step_interaction_protocol(self, env_td: Any) -> Any:
            done, agent_done, terminated, reward = super().step_interaction_protocol(env_td)
            reward[..., 0] += 0.25 * (env_td["round"] % 2 == 1)
            return done, agent_done, terminated, reward

    protocol = build_protocol_handler(params("paid_to_talk"))
    assert protocol.step(1, 2, 1).rewards == {"prover": 0.25, "verifier": 0.0}
    assert protocol.step(2, 1, 0).rewards == {"prover": 1.0, "verifier": -1.0}
    assert protocol.step(7, 2, 0).rewards == {"prover": 0.25, "verifier": -1.0}


def test_a_batch_is_stepped_as_its_conversations_are() -> None:
    from tensordict import TensorDict

    agents = TensorDict({"decision": torch.tensor([[2, 1], [2, 2], [2, 0]])}, batch_size=[3, 2])
    agents["done"] = torch.zeros(3, 2, dtype=torch.bool)
    batch = TensorDict(
        {"y": torch.tensor([[1], [1], [1]]), "round": torch.tensor([0, 7, 1]), "seed": torch.arange(3)}, [3]
    )
    batch["done"] = batch["terminated"] = torch.zeros(3, dtype=torch.bool)
    batch["agents"] = agents
    found = build_protocol_handler(params("nip")).step_interaction_protocol(batch)
    done, agent_done, terminated, reward = (each.tolist() for each in found)
    assert (done, agent_done) == ([True, False, False], [[True, True], [False, False], [False, False]])
    assert terminated == [False, True, False]
    assert reward == [[1.0, 1.0], [0.0, -1.0], [0.0, 0.0]]


def test_any_protocol_of_one_verifier_becomes_zero_knowledge() -> None:
    given = params("notebook", protocol_common={"zero_knowledge": True})
    protocol = build_protocol_handler(given)
    assert isinstance(protocol, ZeroKnowledgeProtocol)
    assert len(protocol.message_channel_names) == 6


def test_mistakes_are_refused() -> None:
    @register_protocol_handler("misspelt_channel")
    class MisspeltChannel(NotebookProtocol):
        agent_channel_visibility = [("verifier", "main"), ("prover", "main"), ("verifier", "notebok")]

    with pytest.raises(SettingsError, match='agent_channel_visibility: unknown "notebok"; did you mean "notebook"'):
        build_protocol_handler(params("misspelt_channel"))

    @register_protocol_handler("without_turns")
    class WithoutTurns(SingleVerifierProtocolHandler):
        agent_names = ["prover", "verifier"]
        max_message_rounds = 2

    with pytest.raises(SettingsError, match="WithoutTurns defines neither active_channels nor get_active_agents_mask"):
        build_protocol_handler(params("without_turns"))

    @register_protocol_handler("one_leaves")
    class OneLeaves(TwoJudges):
        def step_interaction_protocol(self, env_td: Any) -> Any:
            done, agent_done, terminated, reward = super().step_interaction_protocol(env_td)
            agent_done[..., 1] = True
            return done, agent_done, terminated, reward

    with pytest.raises(SettingsError, match="ends agents before the conversation, in round 0"):
        build_protocol_handler(params("one_leaves")).outcome_table()
