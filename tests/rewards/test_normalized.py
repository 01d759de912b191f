"""Normalized rewards are those of VecNormalize, over several rollouts, autoreset steps and ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from quintain.core.process_group import SingleProcess
from quintain.data import fields as f
from quintain.errors import SettingsError
from quintain.rewards.extrinsic import NormalizedExtrinsic, extrinsic_for
from quintain.rewards.settings import ExtrinsicSettings
from quintain.runs.slots import Trainer
from quintain.settings.tree import RunFile

GAMMA, CLIP = 0.9, 1.5
NUM_STEPS, NUM_LANES, NUM_ROLLOUTS = 12, 6, 3


class VecNormalizeReward:
    """Stable-Baselines3's reward normalization written from its description, one step of all lanes at a time."""

    def __init__(self, num_lanes: int) -> None:
        self.mean, self.var, self.count = 0.0, 1.0, 1e-4
        self.returns = np.zeros(num_lanes)

    def step(self, reward: np.ndarray, done: np.ndarray) -> np.ndarray:
        self.returns = self.returns * GAMMA + reward
        mean, var, count = self.returns.mean(), self.returns.var(), len(self.returns)
        delta, total = mean - self.mean, self.count + count
        m2 = self.var * self.count + var * count + delta**2 * self.count * count / total
        self.mean, self.var, self.count = self.mean + delta * count / total, m2 / total, total
        scaled = np.clip(reward / np.sqrt(self.var + 1e-8), -CLIP, CLIP)
        self.returns[done] = 0.0
        return scaled


class Steps:
    """Rewards and ends of lanes, cut into blocks as a collector does."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def array(self, name: str) -> np.ndarray:
        return self.arrays[name]


def played(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    shape = (NUM_ROLLOUTS * NUM_STEPS, NUM_LANES)
    return draw.normal(3.0, 5.0, shape).astype(np.float32), draw.random(shape) < 0.15


def blocks(reward: np.ndarray, done: np.ndarray, lanes: slice = slice(None)) -> list[Steps]:
    first = np.concatenate((np.ones((1, NUM_LANES), np.bool_), done))
    found = []
    for start in range(0, len(reward), NUM_STEPS):
        # One more row than steps: a block's last row is the next observation's.
        rows = slice(start, start + NUM_STEPS + 1)
        padded = np.concatenate((reward[start : start + NUM_STEPS], np.full((1, NUM_LANES), 7.0, np.float32)))
        arrays = {f.REWARD: padded, f.FIRST: first[rows], f.VALID: np.ones_like(first[rows])}
        found.append(Steps({name: values[:, lanes] for name, values in arrays.items()}))
    return found


def signal_of(**settings: Any) -> NormalizedExtrinsic:
    made = extrinsic_for(ExtrinsicSettings(gamma=GAMMA, normalize_reward=True, clip_reward=CLIP, **settings))
    assert isinstance(made, NormalizedExtrinsic)
    return made


def expected(reward: np.ndarray, done: np.ndarray) -> np.ndarray:
    other = VecNormalizeReward(NUM_LANES)
    return np.stack([other.step(*step) for step in zip(reward, done, strict=True)])


def test_rewards_are_those_of_vec_normalize() -> None:
    reward, done = played()
    signal = signal_of()
    found = np.concatenate([signal.evaluate(block) for block in blocks(reward, done)])
    np.testing.assert_allclose(found, expected(reward, done), rtol=1e-6)
    assert (np.abs(found) == CLIP).any(), "some are clipped"
    assert found.dtype == np.float32


def test_its_state_is_all_it_knows() -> None:
    signal, other = signal_of(), signal_of()
    first, *rest = blocks(*played())
    signal.evaluate(first)
    other.load_state_dict(signal.state_dict())
    for block in rest:
        np.testing.assert_array_equal(signal.evaluate(block), other.evaluate(block))


def test_steps_that_only_reset_a_lane_do_not_count() -> None:
    # Lane 1 ends at step 2; step 3 only resets it, and its next episode begins at step 4.
    reward = np.array([[1, 2], [1, 2], [1, 2], [1, 99], [1, 2], [0, 0]], np.float32)
    valid = np.ones((6, 2), np.bool_)
    valid[3, 1] = False
    first = np.zeros((6, 2), np.bool_)
    first[0] = first[4, 1] = True
    signal = signal_of()
    signal.evaluate(Steps({f.REWARD: reward, f.FIRST: first, f.VALID: valid}))
    assert signal.count == pytest.approx(1e-4 + 9)
    # Lane 0: 1 + 0.9 + 0.81 + 0.729 + 0.6561; lane 1 begins anew.
    np.testing.assert_allclose(signal.returns, [4.0951, 2.0])


class Meeting:
    """Two ranks in threads that gather what they bring."""

    def __init__(self) -> None:
        self.barrier, self.brought = threading.Barrier(2), [[], []]

    def rank(self, rank: int) -> Any:
        meeting = self

        class World(SingleProcess):
            size = 2

            def gather(self, values: Sequence[float]) -> list[list[float]]:
                meeting.brought[rank] = list(values)
                meeting.barrier.wait(timeout=20)
                found = [list(each) for each in meeting.brought]
                meeting.barrier.wait(timeout=20)
                return found

        world = World()
        world.rank = rank
        return world


def test_two_ranks_have_the_statistics_of_one() -> None:
    reward, done = played()
    alone, meeting, found = signal_of(), Meeting(), [[], []]
    signals = [signal_of(), signal_of()]

    def work(rank: int) -> None:
        signals[rank].world = meeting.rank(rank)
        lanes = slice(rank * NUM_LANES // 2, (rank + 1) * NUM_LANES // 2)
        found[rank] = [signals[rank].evaluate(block) for block in blocks(reward, done, lanes)]

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, block in enumerate(blocks(reward, done)):
        whole = alone.evaluate(block)
        np.testing.assert_array_equal(np.concatenate([each[number] for each in found], axis=1), whole)
    for signal in signals:
        assert (signal.count, signal.mean, signal.variance) == (alone.count, alone.mean, alone.variance)
        np.testing.assert_array_equal(signal.returns, alone.returns)


def test_replayed_rewards_are_stored_as_they_are_and_scaled_when_drawn() -> None:
    reward, done = played()
    signal = signal_of(strength=2.0)
    signal.is_replayed = True
    [block, *_] = blocks(reward, done)
    np.testing.assert_array_equal(signal.evaluate(block), reward[:NUM_STEPS])
    drawn = torch.tensor([0.5, -300.0])
    scaled = signal.rescale(drawn)
    assert scaled.tolist() == pytest.approx([0.5 / np.sqrt(signal.variance + 1e-8), -2.0 * CLIP])


SMALL = {"num_lanes": 2, "total_timesteps": 128, "writers": [], "events": []}


@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_a_replay_keeps_the_environments_rewards(algorithm: str) -> None:
    settings = {**SMALL, "normalize_reward": True, "learning_starts": 32, "batch_size": 16}
    trainer = Trainer(algorithm, "Pendulum-v1", **settings)
    trainer.train()
    memory, [signal] = trainer.batch.memory, trainer.algorithm.signals.values()
    stored = memory.draw(np.arange(len(memory)))[f.REWARD]
    [minibatch] = trainer.algorithm.minibatches(trainer.batch, 16, 1, 0)
    assert stored.min() < -1.0, "Pendulum's own rewards"
    assert minibatch[f.REWARD].abs().max() < stored.abs().max()
    scaled = {round(each, 4) for each in signal.rescale(stored).tolist()}
    assert {round(each, 4) for each in minibatch[f.REWARD].tolist()} <= scaled


def test_several_signals_in_one_replay_are_refused() -> None:
    signals = {"extrinsic": {"normalize_reward": True}, "calm": {"type": "tests.rewards.signals:Calm"}}
    with pytest.raises(SettingsError, match="stored as one sum") as refused:
        Trainer("sac", "Pendulum-v1", reward_signals=signals, **SMALL)
    assert refused.value.code == "E0216"


def test_what_comes_in_pieces_is_refused() -> None:
    cases = (
        ("E0226", ("agents/quintain.envs.agents.tasks:gates",)),
        ("E0224", ("CartPole-v1", "rollout.type=fragments")),
        ("E0224", ("CartPole-v1", "rollout.type=lockstep")),
    )
    for code, words in cases:
        with pytest.raises(SettingsError, match="normalize_reward: the discounted return is followed in") as refused:
            RunFile.from_names("ppo", *words, "norm_reward=true")
        assert refused.value.code == code
