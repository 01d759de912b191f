"""Memory while collecting: it starts empty with every episode, a replay repeats it, and ends are valued with their own.

The oracle is torch's own cell, run over whole episodes of a script whose every observation is known beforehand.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quintain.algorithms.minibatches import MinibatchSampler
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.rollout import Batch, Rollout
from quintain.envs.base import Env
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.rollouts.sync_collector import SyncCollector
from tests.scripted import MODES, Episode, Row, expected_rows, ignore_episodes, never, scripted_env

SCRIPT = [
    [Episode(3, "truncated"), Episode(1, "both"), Episode(4, "terminated")],
    [Episode(2, "terminated"), Episode(5, "truncated")],
    [Episode(9, "truncated")],
]
T = 6
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}


def make(env: Env, cell: str) -> ActorCritic:
    policy = ActorCritic(
        ActorCriticSettings(hidden_sizes=(8,), memory=MemorySettings(cell=cell, size=4)), env.spec, Rng(0)
    )
    with torch.no_grad():
        policy.actor[-1].weight.mul_(100)
    return policy


def rollout_for(env: Env, policy: ActorCritic) -> Rollout:
    return Rollout(env.spec, num_lanes=env.num_lanes, num_steps=T, fields=policy.declare_fields())


class Oracle:
    """One lane's memory by torch's own cell."""

    def __init__(self, cell: str, policy: ActorCritic) -> None:
        memory, self.policy = policy.trunk.memory, policy
        self.cell = CELLS[cell](3, 4)
        self.cell.load_state_dict({
            "weight_ih": memory.input_weight, "weight_hh": memory.state_weight,
            "bias_ih": memory.input_bias, "bias_hh": memory.state_bias,
        })  # fmt: skip
        self.state: object = None

    def value(self, obs: tuple[int, ...], *, first: bool, keep: bool) -> float:
        """Returns the critic's value of the next observation; without `keep` it is as if it had not been seen."""
        state = None if first else self.state
        after = self.cell(torch.tensor([obs], dtype=torch.float32), state)
        hidden = after[0] if isinstance(after, tuple) else after
        if keep:
            self.state = after
        return float(self.policy.critic(hidden))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_values_are_those_of_memories_that_saw_their_own_episode_only(mode: str, cell: str) -> None:
    env = scripted_env(SCRIPT, mode)
    policy = make(env, cell)
    collector, rollout = SyncCollector(env, policy, Rng(0), ignore_episodes), rollout_for(env, policy)
    oracles = [Oracle(cell, policy) for _ in SCRIPT]
    num_cut = 0
    for number in range(4):
        collector.collect(rollout, number, never)
        for lane, (oracle, episodes) in enumerate(zip(oracles, SCRIPT, strict=True)):
            rows: list[Row] = expected_rows(lane, episodes, (number + 1) * T + 1, mode)[number * T :]
            for t, row in enumerate(rows[:T]):
                where = f"rollout {number}, lane {lane}, slot {t}"
                expected = oracle.value(row.obs, first=row.first, keep=True)
                assert float(rollout[f.VALUE][lane, t]) == pytest.approx(expected, abs=1e-5), where
                is_cut = row.truncated and not row.terminated
                if is_cut:
                    num_cut += 1
                    expected = oracle.value(row.final_obs, first=False, keep=False)
                assert float(rollout[f.FINAL_VALUE][lane, t]) == pytest.approx(expected if is_cut else 0, abs=1e-5)
            # The bootstrap: the observation after the last step, which the next rollout will see again.
            expected = oracle.value(rows[T].obs, first=rows[T].first, keep=False)
            assert float(rollout[f.VALUE][lane, T]) == pytest.approx(expected, abs=1e-5)
    assert num_cut >= 4


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch_size", [T, 2 * T, 3 * T])
def test_a_replay_repeats_the_log_probabilities_and_values_of_the_rollout(
    mode: str, cell: str, batch_size: int
) -> None:
    env = scripted_env(SCRIPT, mode)
    policy = make(env, cell)
    collector, rollout = SyncCollector(env, policy, Rng(0), ignore_episodes), rollout_for(env, policy)
    for number in range(3):
        collector.collect(rollout, number, never)
        batch, seen = Batch(rollout), 0
        for part in MinibatchSampler(Rng(1)).lanes(batch, (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE), batch_size, number):
            now = policy.evaluate_actions(part)
            torch.testing.assert_close(now[f.LOG_PROB], part[f.LOG_PROB], atol=1e-5, rtol=0)
            torch.testing.assert_close(now[f.VALUE], part[f.VALUE], atol=1e-5, rtol=0)
            assert now[f.LOG_PROB].requires_grad
            seen += len(part[f.LOG_PROB])
        assert seen == T * len(SCRIPT)
    # Both kinds of boundary occurred: an episode that began inside, and one that went on from the last rollout.
    assert rollout[f.FIRST][:, 1:T].any()
    assert not rollout[f.FIRST][:, 0].all()


def test_a_replay_without_the_memory_it_began_with_is_noticed() -> None:
    env = scripted_env(SCRIPT, "lanes")
    policy = make(env, "lstm")
    collector, rollout = SyncCollector(env, policy, Rng(0), ignore_episodes), rollout_for(env, policy)
    for number in range(2):
        collector.collect(rollout, number, never)
    rollout.policy_state.zero_()
    (part,) = MinibatchSampler(Rng(1)).lanes(Batch(rollout), (f.OBS, f.ACTION, f.LOG_PROB), 3 * T, 0)
    assert not torch.allclose(policy.evaluate_actions(part)[f.LOG_PROB], part[f.LOG_PROB], atol=1e-3)
