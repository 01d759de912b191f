"""Fields that parts declare: in every block, in minibatches, between processes, and in checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms import PPO, PPOSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fields import Declared, Field, gather_fields, like, resolve_fields
from quintain.data.rollout import Batch, Rollout
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec, DictSpec, box, discrete
from quintain.data.trajectory import TrajectoryBlock
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings
from quintain.rewards.settings import ExtrinsicSettings
from quintain.rollouts.replay import ReplayBuffer
from quintain.rollouts.settings import ReplaySettings
from quintain.services.checkpoints.state_files import decode, digest_of, encode
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly
from tests.algorithms.cloning import ALGORITHM, TRAINER, AskingTrainer, Novelty
from tests.algorithms.samples import HYBRID, make_policy, rollout_of
from tests.behaviors.runs import make, run_file
from tests.declared import declared
from tests.envs.fragile import Walk
from tests.trainers.small_runs import small_trainer

SPEC = BehaviorSpec(DictSpec((("eye", box(2)), ("key", discrete(3)))), box(3))
SMALL: dict[str, Any] = {
    "num_lanes": 2, "num_steps": 8, "batch_size": 8, "num_epochs": 1, "writers": [], "events": [], "seed": 5
}  # fmt: skip


class Part:
    """Declares what it is told to."""

    def __init__(self, fields: Declared) -> None:
        self.fields = fields

    def declare_fields(self) -> Declared:
        return self.fields


def test_a_field_like_another_has_its_leaves_shapes_and_dtypes() -> None:
    fields = gather_fields(SPEC, Part({"value": Field((2,))}), Part({"seen": like("obs"), "target": like("value")}))
    assert fields["seen.eye"] == Field((2,))
    assert fields["seen.key"] == Field((), "int64")
    assert fields["target"] == fields["return"] == fields["final_value"] == Field((2,))
    assert resolve_fields(SPEC, fields) == fields


def test_parts_may_declare_the_same_field_only_if_they_mean_the_same() -> None:
    same = {"goal": like("action")}
    assert gather_fields(SPEC, Part({}), Part(same), Part(same))["goal"] == Field((3,))
    with pytest.raises(SettingsError, match=r"Part declares the field 'goal' as .*\(4,\).*, and it is .*\(3,\)"):
        gather_fields(SPEC, Part({}), Part(same), Part({"goal": Field((4,))}))
    with pytest.raises(SettingsError, match="declares the field 'reward'"):
        gather_fields(SPEC, Part({}), Part({"reward": Field((2,))}))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"goal": like("gaol")}, "'goal' is declared like 'gaol', which is no field"),
        ({"goal": Field((), "float64")}, "its dtype may be bool, float32, int32, int64, uint8"),
        ({"goal": Field((), per="lane")}, "only policy_state is one of lanes"),
    ],
)
def test_what_no_block_can_hold_is_refused(fields: Declared, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        gather_fields(SPEC, Part({}), Part(fields))


@pytest.mark.parametrize("kind", ["lanes", "trajectories", "sequences"])
def test_every_kind_of_block_has_them_and_saves_them(kind: str) -> None:
    wanted: Declared = {"goal": like("action"), "weight": Field((), "int32"), "policy_state": Field((2,), per="lane")}

    def made(fields: Declared) -> Rollout:
        if kind == "lanes":
            return Rollout(SPEC, fields, num_lanes=2, num_steps=3)
        return TrajectoryBlock(SPEC, 4, fields) if kind == "trajectories" else SequenceBlock(SPEC, 3, 2, fields)

    block, other = made(wanted), made(wanted)
    if kind == "lanes":
        block.begin(1, 0)
    assert block.storage["goal"].shape[2:] == (3,)
    assert block.storage["weight"].dtype == torch.int32
    saved = block.state_dict()
    assert {"goal", "weight"} <= saved["fields"].keys()
    other.load_state_dict(saved)
    with pytest.raises(ValueError, match=r"other names than here|has the shape"):
        made({**wanted, "goal": Field((4,))}).load_state_dict(saved)
    with pytest.raises(ValueError, match="other names than here"):
        made({"policy_state": Field((2,), per="lane")}).load_state_dict(saved)


def test_what_an_earlier_use_of_a_block_wrote_is_cleared() -> None:
    block = Rollout(SPEC, {"goal": like("action")}, num_lanes=2, num_steps=3)
    block.storage["goal"].fill_(7)
    block.begin(2, 0)
    assert not block.storage["goal"].any()


def test_a_policy_finds_what_it_declared_in_its_slots() -> None:
    class Feeling(ActorCritic):
        def declare_fields(self) -> Declared:
            return {**super().declare_fields(), "mood": Field((2,))}

        def act(self, slot: Any, state: Any = None, *, deterministic: bool = False) -> None:
            super().act(slot, state, deterministic=deterministic)
            slot.leaves["mood"].fill_(3.0)

    policy = Feeling(ActorCriticSettings(hidden_sizes=(4,)), BehaviorSpec(box(2), discrete(2)), Rng(0))
    assert rollout_of(policy)["mood"].eq(3.0).all()
    policy.predict(np.zeros(2, np.float32))


@pytest.mark.parametrize("memory", ["", "gru"])
def test_a_structured_field_is_in_minibatches_row_by_row(memory: str) -> None:
    policy = make_policy(HYBRID, memory)
    rollout = rollout_of(policy)
    block = Rollout(policy.spec, {**policy.declare_fields(), "expert_action": like("action")}, num_lanes=4, num_steps=6)
    for name, field in rollout.storage.items():
        block.storage[name].copy_(field)
    actions = f.names_of("action", rollout.storage)
    for name in actions:
        block.storage[f"expert_{name}"].copy_(block.storage[name] + 1)
    ppo = PPO(PPOSettings(), policy)
    ppo.minibatch_fields = (*PPO.minibatch_fields, "expert_action")  # type: ignore[misc]
    for minibatch in ppo.minibatches(Batch(block), 6, 0, 0):
        for name in actions:
            assert torch.equal(minibatch[f"expert_{name}"], minibatch[name] + 1)


def test_a_minibatch_field_that_no_part_declares_is_refused() -> None:
    policy = make_policy()
    ppo = PPO(PPOSettings(), policy)
    ppo.minibatch_fields = (*PPO.minibatch_fields, "expert")  # type: ignore[misc]
    with pytest.raises(SpecMismatch, match="minibatch_fields has 'expert', which no part declares"):
        next(ppo.minibatches(Batch(rollout_of(policy)), 6, 0, 0))


def cloned(placement: str, max_staleness: int) -> str:
    trainer = Trainer(ALGORITHM, Walk, placement=placement, max_staleness=max_staleness, **SMALL)
    for _ in range(3):
        trainer.advance()
    found = digest_of(trainer.state_dict())
    trainer.close()
    return found


@pytest.mark.parametrize("placement", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
@pytest.mark.parametrize("max_staleness", [0, 1])
def test_an_algorithms_own_field_is_the_same_wherever_lanes_act(placement: str, max_staleness: int) -> None:
    assert cloned(placement, max_staleness) == cloned("local", max_staleness)


def test_a_field_is_in_the_checkpoint_of_a_batch_that_is_not_learned_from_yet() -> None:
    trainer, other = (Trainer(ALGORITHM, Walk, **SMALL) for _ in range(2))
    assert trainer._stage_collect()
    assert trainer._stage_estimate()
    other.load_state_dict(decode(encode(trainer.state_dict())))
    found, expected = (each.store.block for each in (other, trainer))  # type: ignore[attr-defined]  # a buffer of blocks
    assert expected["expert_action"][:, :-1].any()
    assert torch.equal(found["expert_action"], expected["expert_action"])
    for each in (trainer, other):
        each.close()


@pytest.mark.parametrize("placement", ["local", "threads"])
def test_a_callback_writes_what_a_trainer_declares(placement: str) -> None:
    trainer = small_trainer("num_steps=8", f"trainer={TRAINER}", f"placement={placement}", evaluate=False)
    assert trainer._stage_collect()
    block = trainer.batch.rollout
    assert block["distance"].shape == (2, 9, 2)
    assert torch.equal(block["distance"][:, :-1, 1], block["obs"][:, :-1, 0])
    trainer.close()


def test_a_trainer_that_is_made_by_hand_declares_fields_too() -> None:
    trainer = AskingTrainer("ppo", Walk, **SMALL)
    assert trainer._stage_collect()
    assert trainer.batch.rollout["distance"][:, :-1].any()
    trainer.close()


def test_a_reward_signal_writes_what_it_declares() -> None:
    ppo = PPO(PPOSettings(), make_policy(), {"extrinsic": Novelty(ExtrinsicSettings())})
    fields = gather_fields(ppo.policy.spec, ppo.policy, ppo, *ppo.signals.values())
    block = Rollout(ppo.policy.spec, fields, num_lanes=2, num_steps=3)
    block.begin(1, 0)
    ppo.estimate(Batch(block))
    assert block["novelty"][:, :-1].eq(2.0).all()


@pytest.mark.parametrize("parts", [("ppo", f"trainer={TRAINER}"), (ALGORITHM,)], ids=["trainer", "algorithm"])
def test_stopped_anywhere_a_run_with_declared_fields_ends_with_the_same_numbers(parts: tuple[str, ...]) -> None:
    name, *more = parts
    words = ("num_lanes=2", "num_steps=8", "batch_size=8", "num_epochs=1", "budget.env_steps=64", "events=[]")
    assert_resumes_exactly(RunFile.from_names(name, "CartPole-v1", *words, *more), stop_after_steps=[11, 5])


@pytest.mark.parametrize("memory", [None, {"cell": "gru", "size": 4}])
def test_agents_have_an_algorithms_own_field_too(memory: Any) -> None:
    changes: dict[str, Any] = {"algorithm": {"type": ALGORITHM}, "policy": {"memory": memory}}
    trainer = make(run_file("gates", 400, **changes))
    [gate] = trainer.learners.values()
    trainer.train()
    block = gate.store.block  # type: ignore[attr-defined]  # a buffer of blocks
    valid = block.storage[f.VALID]
    assert valid.any()
    for name in f.names_of("action", block.storage):
        assert torch.equal(block.storage[f"expert_{name}"][valid], block.storage[name][valid] + 1)
    trainer.close()
    assert_resumes_exactly(run_file("gates", 300, **changes), stop_after_steps=[9, 14])


# Sequences have one reward for each step.
@pytest.mark.parametrize(("state_size", "num_return_steps"), [(0, 1), (0, 2), (2, 1)])
def test_replay_keeps_a_declared_field_beside_each_step(state_size: int, num_return_steps: int) -> None:
    fields = {**declared(state=state_size), "goal": like("action"), "unwanted": Field()}
    block = Rollout(SPEC, fields, num_lanes=2, num_steps=4)
    settings = ReplaySettings(buffer_size=80, num_steps=4, num_return_steps=num_return_steps)
    store = ReplayBuffer(block, settings=settings, keep=("obs", "goal"))
    block.begin(1, 0)
    block.storage["action"].copy_(torch.randn(5, 2, 3))
    block.storage["goal"].copy_(block.storage["action"] + 1)
    store.batch_of(block).remember(block.array(f.REWARD)[:-1], 0.9)
    drawn = store.memory.draw(np.arange(len(store.memory)))
    assert "unwanted" not in drawn
    assert drawn["action"].any()
    assert torch.equal(drawn["goal"], drawn["action"] + 1)
