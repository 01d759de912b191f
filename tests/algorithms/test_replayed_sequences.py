"""A replay of what was collected repeats its log-probabilities and values, and gradients go back as far as they should.

With every kind of memory and without one, in chunks that divide a rollout and that do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.minibatches import MinibatchSampler, num_valid, only_valid
from quintain.algorithms.ppo import PPO
from quintain.algorithms.settings import PPOSettings
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic, Trunk
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.runs.assemble import assemble
from quintain.runs.run import Run
from quintain.settings.tree import RunFile
from quintain.testing import assert_resumes_exactly

MEMORIES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "lstm": {"cell": "lstm", "size": 8},
    "gru": {"cell": "gru", "size": 8},
    "transformer": {"cell": "transformer", "size": 8, "window": 6, "num_layers": 2, "num_heads": 2},
}
NUM_LANES, NUM_STEPS = 6, 40


def collected(memory: dict[str, Any] | None, **options: Any) -> Trainer:
    """Trains a little, so that episodes begin at different steps of each lane, and collects one rollout more."""
    trainer = Trainer(
        "ppo", "CartPole-v1", num_lanes=NUM_LANES, num_steps=NUM_STEPS, batch_size=80, num_epochs=1, seed=3,
        hidden_sizes=[16], memory=memory, compiled=False, normalize_obs=True, learning_rate=3e-3, writers=[], events=[],
        **options,
    )  # fmt: skip
    for _ in range(3):
        trainer.advance()
    assert trainer._stage_collect()
    first = trainer.batch.rollout[f.FIRST][:, :-1]
    assert len({tuple(row.nonzero().flatten().tolist()) for row in first}) == NUM_LANES
    assert first[:, 1:].any()
    assert not first[:, 0].all()
    return trainer


def assert_replay_repeats_rollout(trainer: Trainer, batch_size: int) -> None:
    num_steps = 0
    for minibatch in trainer.algorithm.minibatches(trainer.batch, batch_size, 0):
        with torch.no_grad():
            then, now = only_valid(minibatch, trainer.policy.evaluate_actions(minibatch))
        torch.testing.assert_close(now[f.LOG_PROB], then[f.LOG_PROB], atol=1e-5, rtol=0.0)
        torch.testing.assert_close(now[f.VALUE], then[f.VALUE], atol=1e-5, rtol=0.0)
        num_steps += len(then[f.LOG_PROB])
    assert num_steps == trainer.batch.num_valid


@pytest.mark.parametrize(
    ("kind", "context_length"),
    [("none", None), *((kind, length) for kind in ("lstm", "gru", "transformer") for length in (None, 8, 7))],
)
def test_a_replay_repeats_the_rollout(kind: str, context_length: int | None) -> None:
    memory = MEMORIES[kind]
    trainer = collected(None if memory is None else {**memory, "context_length": context_length})
    for num_lanes in (1, 2, 4, NUM_LANES):
        assert_replay_repeats_rollout(trainer, num_lanes * NUM_STEPS)
    trainer.close()


def collected_fragments(memory: dict[str, Any] | None) -> Trainer:
    """Collects fragments of lanes that do not wait for each other."""
    trainer = Trainer(
        "ppo", "CartPole-v1", num_lanes=4, rollout={"type": "fragments", "num_steps": 10, "num_fragments": 12}, seed=3,
        batch_size=40, num_epochs=1, hidden_sizes=[16], memory=memory,
        # A fragment may hold steps of two versions, so that both act alike.
        learning_rate=1e-12, compiled=False, writers=[], events=[],
    )  # fmt: skip
    trainer.advance()
    assert trainer._stage_collect()
    first = trainer.batch.rollout[f.FIRST][:, :-1]
    assert first[:, 1:].any()
    assert not first[:, 0].all()
    return trainer


@pytest.mark.parametrize("rollout", ["block", "fragments"])
@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_a_policy_that_ignores_resets_is_found_out(kind: str, rollout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = collected(MEMORIES[kind]) if rollout == "block" else collected_fragments(MEMORIES[kind])
    replay = Trunk.replay

    def without_resets(trunk: Trunk, batch: dict[str, torch.Tensor], state: torch.Tensor | None) -> torch.Tensor:
        return replay(trunk, {**batch, f.FIRST: torch.zeros_like(batch[f.FIRST])}, state)

    monkeypatch.setattr(Trunk, "replay", without_resets)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_replay_repeats_rollout(trainer, trainer.batch.rollout.num_steps)
    trainer.close()


@pytest.mark.parametrize(
    ("kind", "context_length"),
    [("none", None), *((kind, length) for kind in ("lstm", "gru", "transformer") for length in (None, 5, 4))],
)
def test_a_replay_repeats_fragments_of_lanes_that_do_not_wait(kind: str, context_length: int | None) -> None:
    """Fragments begin inside episodes, with the hidden state that the lane had."""
    memory = MEMORIES[kind]
    trainer = collected_fragments(None if memory is None else {**memory, "context_length": context_length})
    first = trainer.batch.rollout[f.FIRST][:, :-1]
    assert len({tuple(row.nonzero().flatten().tolist()) for row in first}) > 4, "resets were at the same steps"
    for num_fragments in (1, 3, 4, 12):
        assert_replay_repeats_rollout(trainer, num_fragments * 10)
    trainer.close()


def recall(memory: dict[str, Any]) -> RunFile:
    """Agents whose trajectories are cut inside episodes."""
    learner = {
        "algorithm": {"type": "ppo", "batch_size": 32, "num_epochs": 2},
        "policy": {"hidden_sizes": [8], "memory": memory},
        "rollout": {"buffer_size": 64, "time_horizon": 4},
    }
    env = {"type": "agents", "id": "quintain.envs.agents.memory_tasks:recall"}
    budget = {"env_steps": 300}
    return RunFile.from_mapping(
        {"experiment": {"env": env, "budget": budget, "behaviors": {"Recall": learner}}, "run": {"writers": []}}
    )


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_sequences_of_agents_are_repeated_too_and_resume_exactly(kind: str) -> None:
    run_file = recall({**(MEMORIES[kind] or {}), "context_length": 3})
    run = Run(run_file, [])
    trainer = assemble(run_file, run, run.writer)
    trainer.advance()
    assert trainer._stage_collect()
    first = trainer.batch.rollout.storage[f.FIRST][0]
    assert first.any()
    assert not first.all()
    for batch_size in (4, 32):
        assert_replay_repeats_rollout(trainer, batch_size)
    trainer.close()
    assert_resumes_exactly(recall({**(MEMORIES[kind] or {}), "burn_in": 1}), stop_after_steps=[5, 7])


SPEC = BehaviorSpec(box(3), discrete(2))


def block(memory: dict[str, Any], num_lanes: int = 3, num_steps: int = 12) -> tuple[PPO, Batch]:
    """Makes sequences of a policy's own actions, with episodes that begin at steps 4 and 5, 9, and nowhere inside."""
    settings = ActorCriticSettings(
        hidden_sizes=(8,), memory=MemorySettings(**memory), compiled=False, activation="silu"
    )
    policy = ActorCritic(settings, SPEC, Rng(1))
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    rollout = Rollout(SPEC, policy.declare_fields(), num_lanes=num_lanes, num_steps=num_steps)
    rollout.begin(1, version=0)
    draw = np.random.default_rng(3)
    for name in (f.OBS, f.NOISE, f.ADVANTAGE, f.RETURN):
        rollout.arrays[name][...] = draw.random(rollout.arrays[name].shape)
    for t, lane in ((4, 0), (5, 0), (9, 1)):
        rollout.arrays[f.FIRST][t, lane] = True
    state = policy.initial_state(num_lanes)
    with torch.no_grad():
        # As a rollout that goes on with older episodes.
        for slot in rollout.slots[:4]:
            policy.act(slot, state)
        rollout.policy_state.copy_(state)
        for slot in rollout.slots:
            policy.act(slot, state)
    return PPO(PPOSettings(), policy, rng=Rng(1)), Batch(rollout)


@pytest.mark.parametrize(("context_length", "burn_in"), [(None, 0), (4, 0), (5, 0), (None, 3), (5, 2)])
@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_gradients_cross_neither_resets_nor_borders_of_chunks(
    kind: str, context_length: int | None, burn_in: int
) -> None:
    """A step's results depend on an observation by autograd just where both are in one episode and in one chunk."""
    memory = {**(MEMORIES[kind] or {}), "context_length": context_length, "burn_in": burn_in}
    ppo, batch = block(memory)
    first = batch.rollout.arrays[f.FIRST]
    num_steps, num_lanes = batch.rollout.num_steps, batch.rollout.num_lanes
    everything = {name: batch.rollout.flat(name) for name in (f.OBS, f.ACTION, f.FIRST)}
    everything |= {f.OBS: everything[f.OBS].clone().requires_grad_(), f.POLICY_STATE: batch.rollout.policy_state}
    now = ppo.policy.evaluate_actions(everything)
    # The step at which the chunk of a step begins, written out.
    chunks = {
        (None, 0): [0] * 12,
        (4, 0): [0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8],
        (5, 0): [0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10, 10],
        (None, 3): [0, 0, 0, *[3] * 9],
        (5, 2): [0, 0, 2, 2, 2, 2, 2, 7, 7, 7, 7, 7],
    }[context_length, burn_in]
    for t in range(num_steps):
        result = (now[f.LOG_PROB] + now[f.VALUE]).view(num_steps, num_lanes)[t].sum()
        [by_obs] = torch.autograd.grad(result, everything[f.OBS], retain_graph=True)
        found = by_obs.view(num_steps, num_lanes, -1).abs().amax(dim=2) > 0
        for lane in range(num_lanes):
            begun = max([0, chunks[t], *(s for s in range(t + 1) if first[s, lane])])
            # Two layers with a window of six reach ten steps back.
            expected = [begun <= s <= t and (kind != "transformer" or t - s <= 10) for s in range(num_steps)]
            assert found[:, lane].tolist() == expected, (t, lane)


def test_a_burn_in_leaves_out_what_went_on_and_keeps_episodes_that_begin() -> None:
    ppo, batch = block({"cell": "gru", "size": 4, "burn_in": 6})
    batch.rollout.arrays[f.VALID][7, 2] = False
    [minibatch] = ppo.minibatches(batch, 36, 0)
    # Lane 0 begins an episode at step 4, lane 1 after the burn-in, lane 2 never, and its step 7 only reset.
    expected = {0: range(4, 12), 1: range(6, 12), 2: (6, 8, 9, 10, 11)}
    order = ppo.sampler.lane_numbers(batch, 36, 0)[0].tolist()
    valid = minibatch[f.VALID].view(12, 3)
    assert {lane: valid[:, i].nonzero().flatten().tolist() for i, lane in enumerate(order)} == {
        lane: list(steps) for lane, steps in expected.items()
    }
    assert int(num_valid(minibatch)) == 8 + 6 + 5
    # What stands at steps that are left out changes no loss; what was seen there does, by the hidden state.
    losses = [ppo.loss(minibatch, 0.0).total]
    for name in (f.ADVANTAGE, f.RETURN, f.OBS):
        changed = minibatch[name].clone()
        changed[~minibatch[f.VALID]] += 5.0
        losses.append(ppo.loss({**minibatch, name: changed}, 0.0).total)
    assert losses[0] == losses[1] == losses[2] != losses[3]


def test_a_lane_that_is_all_burn_in_is_in_no_minibatch() -> None:
    _, batch = block({"cell": "gru", "size": 4})
    batch.rollout.arrays[f.VALID][6:, 2] = False
    sampler = MinibatchSampler(Rng(0), burn_in=6)
    assert sorted(lane for lanes in sampler.lane_numbers(batch, 12, 0) for lane in lanes.tolist()) == [0, 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("memory={cell: gru, window: 8}",), "window goes with cell transformer; leave it out of cell gru"),
        (("memory={cell: transformer, size: 10}",), "num_heads 4 does not divide size 10"),
        (("memory={cell: transformer, window: 1}",), "found 1, expected at least 2"),
        (("memory={cell: gru, burn_in: 128}", "num_steps=128"), "128 leaves nothing to learn from in sequences of"),
        (("algorithm.type=sac", "memory={cell: gru, burn_in: 2}", "rollout.num_steps=8"),
         "sac learns from whole sequences: leave it out"),
    ],
)  # fmt: skip
def test_settings_of_memory_that_have_no_meaning_are_refused(words: tuple[str, ...], sentence: str) -> None:
    algorithm = "sac" if "algorithm.type=sac" in words else "ppo"
    with pytest.raises(SettingsError) as refusal:
        RunFile.from_names(algorithm, "CartPole-v1", *(word for word in words if not word.startswith("algorithm")))
    assert sentence in "\n".join([refusal.value.message, *refusal.value.notes])


def test_a_transformer_says_its_numbers_in_the_settings() -> None:
    memory = MemorySettings(cell="transformer", window=16)
    assert (memory.window, memory.num_layers, memory.num_heads) == (16, 1, 4)
    assert MemorySettings(**memory.model_dump()) == memory
    assert MemorySettings().window is None
