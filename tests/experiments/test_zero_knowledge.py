"""Zero-knowledge protocols: turns and ends by tables written by hand, similarities by hand, and whole runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.compat.nip import HyperParameters, run_experiment
from quintain.data import fields as f
from quintain.data.rollout import Rollout
from quintain.envs.base import EPISODE
from quintain.errors import SettingsError
from quintain.experiments.protocols.base import DeterministicSingleVerifierProtocolHandler
from quintain.experiments.protocols.zero_knowledge import ZeroKnowledgeProtocol
from quintain.experiments.registry import build_protocol_handler, register_protocol_handler
from quintain.experiments.translate import run_settings, team_settings
from quintain.experiments.zero_knowledge import ZeroKnowledge, similarity
from quintain.policies.team import LOGITS
from quintain.rewards.settings import ZeroKnowledgeSettings
from quintain.services.checkpoints.state_files import digest_of
from quintain.text.archive import read_conversations
from tests.experiments.test_protocols import PRICES
from tests.experiments.test_team import PLUS, copied, make_env, make_policy

NAMES = ["prover", "verifier", "adversarial_verifier", "simulator"]
ZK: dict[str, Any] = {"protocol_common": {**PRICES, "zero_knowledge": True}, "nip_protocol": {"max_message_rounds": 5}}


def handler(name: str = "nip", **given: Any) -> ZeroKnowledgeProtocol:
    made = build_protocol_handler(HyperParameters(**PLUS, interaction_protocol=name, **{**ZK, **given}))
    assert isinstance(made, ZeroKnowledgeProtocol)
    return made


def speakers(protocol: ZeroKnowledgeProtocol, number: int, phase: int) -> dict[str, list[str]]:
    spoken = {name: protocol.channels_in_phase(name, number, 0, phase) for name in protocol.agent_names}
    return {name: channels for name, channels in spoken.items() if channels}


def test_agents_channels_and_turns() -> None:
    protocol = handler()
    standard, adversarial, simulator = protocol.message_channel_names
    assert [standard, adversarial, simulator] == ["main_standard", "main_adversarial", "main_simulator"]
    assert list(protocol.agent_names) == NAMES
    assert protocol.agent_channel_visibility_mask == [
        [True, True, False],
        [True, False, False],
        [False, True, False],
        [False, False, True],
    ]
    own = {"verifier": [standard], "adversarial_verifier": [adversarial], "simulator": [simulator]}
    # Phases: all talk; the adversarial verifier has decided; the verifier has.
    assert speakers(protocol, 0, 0) == own
    assert speakers(protocol, 1, 0) == {"prover": [standard, adversarial]}
    assert speakers(protocol, 2, 1) == {"verifier": [standard]}
    assert speakers(protocol, 1, 1) == {"prover": [standard]}
    assert speakers(protocol, 2, 3) == {"adversarial_verifier": [adversarial], "simulator": [simulator]}
    assert speakers(protocol, 3, 2) == {"prover": [adversarial]}
    assert protocol.stackelberg_sequence == [("verifier", "adversarial_verifier"), ("prover", "simulator")]


def test_a_conversation_ends_when_both_verifiers_have_decided() -> None:
    protocol = handler()
    none = dict.fromkeys(NAMES, 0.0)
    first = protocol.step_all(0, (1, 2), 1)
    assert (first.decision, first.is_terminated) == (1, False)
    assert first.rewards == {**none, "prover": 3.0, "verifier": 5.0}
    # The prover's turn: a decision counts for nothing.
    second = protocol.step_all(1, (0, 0), 1, phase=first.next_phase)
    assert (second.is_terminated, second.rewards, second.next_phase) == (False, none, first.next_phase)
    third = protocol.step_all(2, (0, 0), 1, phase=second.next_phase)
    assert (third.decision, third.is_decided, third.is_terminated) == (1, True, True)
    assert third.rewards == none
    # The other way round: the adversary first, then the verifier, wrong.
    first = protocol.step_all(0, (2, 1), 1)
    assert first.rewards == {**none, "verifier": 0.5}
    last = protocol.step_all(2, (0, 2), 1, phase=first.next_phase)
    assert (last.decision, last.is_decided, last.rewards["verifier"]) == (0, True, -7.0)
    # At the round limit only a verifier without a decision is penalized.
    assert protocol.step_all(4, (2, 2), 1).rewards["verifier"] == -11.0
    late = protocol.step_all(4, (2, 2), 1, phase=2)
    assert (late.decision, late.is_decided, late.is_terminated, late.rewards) == (0, False, True, none)


def test_provers_of_a_debate_have_three_channels_each() -> None:
    protocol = handler("debate", protocol_common={"zero_knowledge": True})
    assert len(protocol.message_channel_names) == 6
    assert speakers(protocol, 1, 0) == {
        "prover0": ["prover0_channel_standard", "prover0_channel_adversarial"],
        "prover1": ["prover1_channel_standard", "prover1_channel_adversarial"],
    }


def test_weights_are_those_of_the_coefficients() -> None:
    zk = {"simulator_reward_coefficient": 2.0, "aux_prover_reward_coefficient": 0.25}
    assert handler(zk_protocol=zk).similarity_weights == [0.5, 0.0, -2.0, 2.0]
    debate = handler("debate", protocol_common={"zero_knowledge": True}, zk_protocol=zk)
    assert debate.similarity_weights == [0.5, 0.5, 0.0, -2.0, 2.0]


def test_similarity_by_hand() -> None:
    """Two base channels of two options: logits of six channels and of the decision."""
    unused = [9.0, -9.0, 5.0, 5.0]
    adversary = torch.tensor([*unused, 3.0, 4.0, 1.0, 0.0, *unused, 1.0, 0.0, 0.0])
    simulator = torch.tensor([*unused, *unused, 4.0, 3.0, 0.0, 2.0, 1.0, 1.0, 0.0])
    everything = torch.ones(15, dtype=torch.bool)
    # Messages (3, 4, 1, 0) and (4, 3, 0, 2): 24 over the roots of 26 and 29. Decisions: 1 over the root of 2.
    both = 24 / math.sqrt(26 * 29) + 1 / math.sqrt(2)
    assert float(similarity(adversary, simulator, everything, 2, 2)) == pytest.approx(both, rel=1e-6)
    # It speaks in the first channel alone, and may not decide: (3, 4) and (4, 3).
    first_only = everything.clone()
    first_only[[7, 12, 13]] = False
    assert float(similarity(adversary, simulator, first_only, 2, 2)) == pytest.approx(24 / 25, rel=1e-6)
    silent = first_only.clone()
    silent[5] = False
    assert float(similarity(adversary, simulator, silent, 2, 2)) == 0.0


def test_the_signal_pays_every_agent_by_the_logits_that_acted() -> None:
    env = make_env("nip", 12, **ZK)
    policy = make_policy(env, keep_logits=True)
    weights = (0.5, 0.0, -2.0, 2.0)
    signal = ZeroKnowledge(ZeroKnowledgeSettings(type="zero_knowledge", weights=weights))
    signal.connect(env.spec, policy.rng)
    rollout = Rollout(env.spec, policy.declare_fields(), num_lanes=12, num_steps=1)
    rollout.write_obs(0, env.reset())
    rollout.write(f.ACTION_MASK, 0, env.action_mask())
    with torch.inference_mode():
        policy.act(rollout.slots[0])
    paid = signal.evaluate(rollout).reshape(3, 4)
    logits = rollout.array(LOGITS)[0].reshape(3, 4, 27)

    def cosine(one: Any, other: Any) -> float:
        return float(one @ other / math.sqrt((one @ one) * (other @ other)))

    for row in range(3):
        adversary, simulator = logits[row, 2], logits[row, 3]
        found = cosine(adversary[8:16], simulator[16:24]) + cosine(adversary[24:], simulator[24:])
        assert paid[row] == pytest.approx([each * found for each in weights], rel=1e-4)
    without = ZeroKnowledge(ZeroKnowledgeSettings(type="zero_knowledge"))
    with pytest.raises(SettingsError, match="found 0 weights, expected one for each agent"):
        without.evaluate(rollout)
    plain = Rollout(env.spec, make_policy(env).declare_fields(), num_lanes=12, num_steps=1)
    with pytest.raises(SettingsError, match=r"set policy\.type to team and policy\.keep_logits"):
        signal.evaluate(plain)


def test_a_row_goes_on_after_the_verifier_has_decided_and_says_if_it_was_right() -> None:
    env = make_env("nip", 8, **ZK)
    env.reset()
    label = env.label.copy()
    action = np.full((2, 4, 4), 2)
    action[0, 1, 3], action[1, 1, 3] = label[0], 1 - label[1]
    first = copied(env.step(torch.from_numpy(action.reshape(8, 4))))
    assert not np.any(first.terminated)
    assert first.reward[[1, 5]].tolist() == [5.0, -7.0]
    action[:, :, 3] = 2
    mask = np.asarray(copied(env.step(torch.from_numpy(action.reshape(8, 4)))).action_mask).reshape(2, 4, -1)
    # The verifier has decided: one option of each component is left to it. Adversary and simulator choose.
    assert mask[:, 1].sum(axis=1).tolist() == [4, 4]
    assert mask[:, 2:, 24:].all()
    assert mask[0, 2, 8:16].all()
    action[:, 2, 3] = 0
    last = env.step(torch.from_numpy(action.reshape(8, 4)))
    assert np.all(last.terminated)
    assert not np.any(last.reward)
    assert last.info is not None
    assert last.info[EPISODE]["accuracy"].reshape(2, 4)[:, 0].tolist() == [1.0, 0.0]
    assert not env.phase.any()
    assert env.seen.reshape(2, 4, -1)[:, 1:, :8].any() == np.False_, "only the prover sees the board"


@pytest.mark.parametrize("trainer", ["vanilla_ppo", "reinforce"])
def test_a_run_trains_and_resumes_with_the_same_digest(tmp_path: Path, trainer: str) -> None:
    rl = {"frames_per_batch": 40, "minibatch_size": 20, "num_iterations": 4, "num_test_iterations": 1}
    given = HyperParameters(**{**PLUS, "trainer": trainer}, **ZK, rl=rl)
    assert run_experiment(given, run_id="whole", output_dir=tmp_path).state == "finished"
    whole = Trainer.load("whole", runs_dir=tmp_path)
    assert set(whole.algorithm.signals) == {"extrinsic", "zero_knowledge"}
    half = HyperParameters(**{**PLUS, "trainer": trainer}, **ZK, rl={**rl, "num_iterations": 2})
    run_experiment(half, run_id="half", output_dir=tmp_path)
    rest = Trainer.load("half", runs_dir=tmp_path)
    rest.train(whole.progress.env_steps)
    assert digest_of(rest.state_dict()) == digest_of(whole.state_dict())


def test_transcripts_have_the_decision_of_each_verifier(tmp_path: Path) -> None:
    rl = {"rollouts_per_iteration": 8, "num_iterations": 1, "num_test_iterations": 1}
    given = HyperParameters(**PLUS, **ZK, rl=rl)
    run_experiment(given, run_id="told", output_dir=tmp_path, rollout_sample_period=1, num_rollout_samples=20)
    talks = read_conversations(tmp_path / "told" / "rollouts" / "test-000001.jsonl").values()
    assert len(talks) == 20
    for talk in talks:
        decided = {turn.agent: (turn.round, turn.decision) for turn in talk.turns if turn.decision != 2}
        assert set(decided) <= {"verifier", "adversarial_verifier"}
        for name, (number, _) in decided.items():
            assert not [turn for turn in talk.turns if turn.agent == name and turn.round > number]
        if "verifier" in decided:
            number, decision = decided["verifier"]
            assert talk.rewards[number]["verifier"] == (5.0 if decision == talk.y else -7.0)
        is_over = len(decided) == 2 or len(talk.rewards) == 5
        assert is_over


def test_what_does_not_fit_is_refused() -> None:
    @register_protocol_handler("two_verifiers")
    class TwoVerifiers(DeterministicSingleVerifierProtocolHandler):
        agent_names = ("verifier0", "verifier1")
        max_message_rounds = 1

        def is_agent_active(self, agent_name: str, round: int, channel_name: str) -> bool:
            return True

    with pytest.raises(SettingsError, match='expected one called "verifier"'):
        handler("two_verifiers")
    with pytest.raises(SettingsError, match="a loss module sees the environment's rewards alone"):
        run_settings(HyperParameters(**PLUS, **ZK, rl={"frames_per_batch": 40}), "loss_module")
    by_hand = {"_default": {"use_manual_architecture": True}}
    with pytest.raises(SettingsError, match="has no hand-written simulator"):
        team_settings(HyperParameters(**PLUS, **ZK, agents=by_hand), handler())
