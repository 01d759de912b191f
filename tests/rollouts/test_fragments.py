"""Lanes that do not wait: their fragments hold every step once, in order, and are estimated over their borders."""

from __future__ import annotations

import itertools
import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.algorithms.minibatches import MinibatchSampler
from quintain.algorithms.ppo import PPO
from quintain.algorithms.returns import generalized_advantages
from quintain.algorithms.settings import PPOSettings
from quintain.compiled.kernels import recursions
from quintain.core.rng import Rng
from quintain.data import fields as f
from quintain.data.fragments import FragmentBlock
from quintain.data.rollout import Batch, Rollout
from quintain.envs.gym.make import gym_env
from quintain.envs.hosts.faults import LaneFault
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.ready_lanes import ReadyLanes
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError
from quintain.policies.actor_critic import ActorCritic
from quintain.policies.settings import ActorCriticSettings, MemorySettings
from quintain.rewards.extrinsic import Extrinsic
from quintain.rewards.settings import ExtrinsicSettings
from quintain.rollouts.fragment_collector import FragmentCollector
from quintain.settings.run import EnvWorkerSettings
from tests.algorithms.test_returns import GAMMA, LAMBDA, advantage_by_definition
from tests.declared import declared
from tests.hold import wait_for
from tests.ranks.commands import finish, run, start
from tests.scripted import Episode, LinearPolicy, expected_rows, never, scripted_env

SCRIPT = [
    [Episode(3, "terminated"), Episode(2, "truncated"), Episode(5, "both")],
    [Episode(4, "truncated")],
    [Episode(99, "terminated")],
]
T = 4


class Straggling:
    """Lets lanes of this process finish in an order of its own, and breaks the steps that it is told to break."""

    def __init__(self, inner: Any, order: np.random.Generator, breaks: dict[int, list[int]]) -> None:
        self.inner = inner
        self.order = order
        self.breaks = breaks
        self.waiting: list[int] = []
        self.faults: list[LaneFault] = []
        self.num_steps: dict[int, int] = {}

    def step(self, lanes: list[int]) -> None:
        for lane in lanes:
            number = self.num_steps[lane] = self.num_steps.get(lane, -1) + 1
            self.waiting.append(lane)
            if number in self.breaks.get(lane, []):
                # It wrote half of a step before it broke.
                self.inner.host.rows.obs["obs"][lane] = -7
                self.inner.host.rows.reward[lane] = 1e6
                self.faults.append(LaneFault((lane,), "step", "it broke", ""))
            else:
                self.inner.step([lane])

    def restart(self, lanes: list[int], parameters: Any) -> None:
        self.waiting += lanes
        self.inner.restart(lanes, parameters)

    def finished(self, seconds: float) -> tuple[list[int], list[LaneFault]]:
        self.inner.finished(0.0)
        some = [lane for lane in self.waiting if self.order.random() < 0.4] or self.waiting[:1]
        self.waiting = [lane for lane in self.waiting if lane not in some]
        told = [fault for fault in self.faults if fault.lanes[0] in some]
        self.faults = [fault for fault in self.faults if fault not in told]
        return some, told


def collected(seed: int, num_blocks: int, breaks: dict[int, list[int]] | None = None) -> tuple[list[dict], Any]:
    """Collects blocks of 4 fragments from lanes that finish in a random order; estimates each block by itself."""
    lanes = scripted_env(SCRIPT, "lanes")
    lanes.faults = Hosting.from_settings(EnvWorkerSettings()).faults
    env = ReadyLanes(lanes)
    env.steps = Straggling(env.steps, np.random.default_rng(seed), breaks or {})
    policy = LinearPolicy(env.spec)
    ppo = PPO(
        PPOSettings(gae_lambda=LAMBDA, normalize_advantage=False),
        policy,
        {"extrinsic": Extrinsic(ExtrinsicSettings(gamma=GAMMA))},
        Rng(0),
    )
    collector = FragmentCollector(env, policy, Rng(0), declared(), num_steps=T, deadline_seconds=0.0)
    block = FragmentBlock(env.spec, declared(), num_lanes=4, num_steps=T)
    blocks = []
    for version in range(num_blocks):
        block.begin(version + 1, 0)
        assert collector.collect(block, version, never)
        ppo.estimate(Batch(block))
        fields = {name: rows.copy() for name, rows in block.arrays.items()}
        blocks.append({**fields, "final": block.final.array(f.OBS).copy()})
    return blocks, collector


def fragments_of(blocks: list[dict]) -> dict[tuple[int, int], tuple[dict, int]]:
    """Returns all fragments by lane and number: their block and column."""
    return {
        (int(block[f.LANE][0, column]), int(block[f.FRAGMENT][0, column])): (block, column)
        for block in blocks
        for column in range(4)
    }


@pytest.mark.parametrize("seed", range(4))
def test_every_step_of_a_lane_is_in_one_fragment_in_its_order(seed: int) -> None:
    blocks, collector = collected(seed, num_blocks=12)
    found = fragments_of(blocks)
    assert len(found) == 48, "no fragment came twice"
    assert len({lane for lane, _ in found}) == 3
    counts = {lane: max(number for one, number in found if one == lane) for lane in range(3)}
    assert len(set(counts.values())) > 1, "lanes were equally quick, which tests nothing"
    for lane, episodes in enumerate(SCRIPT):
        rows = expected_rows(lane, episodes, T * counts[lane] + 1, "lanes")
        for number in range(1, counts[lane] + 1):
            block, column = found[lane, number]
            part = rows[T * (number - 1) : T * number + 1]
            for t, row in enumerate(part):
                assert tuple(block[f.OBS][t, column]) == row.obs
                assert block[f.FIRST][t, column] == row.first
            for t, row in enumerate(part[:T]):
                said = tuple(block[name][t, column] for name in (f.REWARD, f.TERMINATED, f.TRUNCATED))
                assert said == (row.reward, row.terminated, row.truncated)
                if row.final_obs is not None:
                    assert tuple(block["final"][block[f.FINAL_INDEX][t, column]]) == row.final_obs
            assert block[f.FOLLOWS][0, column] == (number > 1)
    # 12 blocks of 4 fragments, and what is unfinished.
    assert collector.num_collected == 12 * 4 * T + int(collector.cursor.sum())
    versions = [found[0, number][0][f.POLICY_VERSION][:T, found[0, number][1]] for number in range(1, counts[0] + 1)]
    assert np.all(np.diff(np.concatenate(versions)) >= 0)


@pytest.mark.parametrize("seed", range(4))
def test_advantages_of_consecutive_fragments_are_those_of_one_sequence(seed: int) -> None:
    blocks, _ = collected(seed, num_blocks=8)
    num_joined = 0
    for block in blocks:
        held = {(int(block[f.LANE][0, c]), int(block[f.FRAGMENT][0, c])): c for c in range(4)}
        for (lane, number), column in held.items():
            last = next(n for n in itertools.count(number) if (lane, n + 1) not in held)
            num_joined += last > number
            rows = expected_rows(lane, SCRIPT[lane], T * last + 1, "lanes")[T * (number - 1) :]
            expected = [advantage_by_definition(rows, t) for t in range(T)]
            np.testing.assert_allclose(block[f.ADVANTAGE][:T, column], expected, atol=5e-6)
    assert num_joined > 2, "no two fragments of a lane were in one block, which tests nothing"


@pytest.mark.parametrize("recursion", [generalized_advantages, recursions.generalized_advantages])
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5, 6, 7], [7, 5, 1, 3, 0, 4, 2, 6]])
def test_borders_by_hand(recursion: Any, order: list[int]) -> None:
    # gamma = lambda = 0.5, so that a border passes on a quarter.
    #                      lane, number, follows, rewards, values and the one that it saw next
    # Lane 0, fragments 1 and 2: one sequence; the 99 that fragment 1 saw next, by older weights, is not used.
    #   A3 = 4 + 25 - 40 = -11; A2 = 3 + 20 - 30 - 11/4 = -9.75; A1 = 2 + 15 - 20 - 9.75/4 = -5.4375;
    #   A0 = 1 + 10 - 10 - 5.4375/4 = -0.359375
    # Lane 1, fragments 1 and 3: a hole. Fragment 1: A1 = 1 + 3 - 4 = 0, A0 = 1 + 2 - 2 + 0 = 1.
    #   Fragment 3 terminates at its first step: A1 = 1 + 2 - 2 = 1, A0 = 5 - 8 = -3.
    # Lane 2, fragment 1 is truncated at its last step, with a final value of 3: A1 = 1 + 1.5 - 2 = 0.5,
    #   A0 = 0 + 1 - 1 + 0.125 = 0.125. Fragment 2: A1 = 2 + 0 - 4 = -2, A0 = 2 + 2 - 4 - 0.5 = -0.5.
    # Lane 3, fragment 2 does not follow fragment 1, because its first step broke: fragment 1 has
    #   A1 = 1 + 3.5 - 2 = 2.5, A0 = 0 + 1 - 1 + 0.625 = 0.625; fragment 2 is as that of lane 2.
    rows = [
        (0, 1, False, [1, 2], [10, 20, 99], [-0.359375, -5.4375]),
        (0, 2, True, [3, 4], [30, 40, 50], [-9.75, -11.0]),
        (1, 1, False, [1, 1], [2, 4, 6], [1.0, 0.0]),
        (1, 3, True, [5, 1], [8, 2, 4], [-3.0, 1.0]),
        (2, 1, False, [0, 1], [1, 2, 7], [0.125, 0.5]),
        (2, 2, True, [2, 2], [4, 4, 0], [-0.5, -2.0]),
        (3, 1, False, [0, 1], [1, 2, 7], [0.625, 2.5]),
        (3, 2, False, [2, 2], [4, 4, 0], [-0.5, -2.0]),
    ]
    spec = scripted_env(SCRIPT, "lanes").spec
    block = FragmentBlock(spec, declared(), num_lanes=8, num_steps=2)
    block.begin(1, 0)
    for column, place in enumerate(order):
        lane, number, follows, reward, value, _ = rows[place]
        for name, known in ((f.LANE, lane), (f.FRAGMENT, number), (f.FOLLOWS, follows)):
            block.arrays[name][:, column] = known
        block.arrays[f.REWARD][:2, column] = reward
        block.arrays[f.VALUE][:, column] = value
        if (lane, number) == (1, 3):
            block.arrays[f.TERMINATED][0, column] = block.arrays[f.DONE][0, column] = True
        if (lane, number) == (2, 1):
            block.arrays[f.TRUNCATED][1, column] = block.arrays[f.DONE][1, column] = True
            block.arrays[f.FINAL_VALUE][1, column] = 3
    names = (f.REWARD, f.FINAL_VALUE, f.TERMINATED, f.DONE, f.VALID)
    reward, final_value, ends, done, valid = (block.array(name)[:-1] for name in names)

    def estimate(*steps: Any) -> Any:
        return recursion(*steps, gamma=0.5, gae_lambda=0.5)

    found = block.over_borders(estimate, reward, block.array(f.VALUE), final_value, ends, done, valid)
    assert found.T.tolist() == [rows[place][-1] for place in order]


def test_a_step_that_broke_is_in_no_fragment_and_truncates_its_episode() -> None:
    # Of lane 1, whose episodes have 4 steps: the 2nd step (within a fragment), and the 5th, which is the first of the
    # second fragment. The episode begins again each time.
    blocks, collector = collected(0, num_blocks=12, breaks={1: [1, 5]})
    assert collector.num_broken == 2
    assert collector.num_collected == 12 * 4 * T + int(collector.cursor.sum())
    found = fragments_of(blocks)
    assert min(block[f.OBS].min() for block in blocks) >= 0, "half a step of a broken environment was kept"
    assert max(block[f.REWARD].max() for block in blocks) < 1000
    one, column = found[1, 1]
    # (lane 1, episode 0, step 0) and the cut; the environment that was made again counts its episodes from 0.
    assert one[f.OBS][:, column].tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 1], [1, 0, 2], [1, 0, 3]]
    assert one[f.TRUNCATED][:T, column].tolist() == [True, False, False, False]
    assert one[f.FIRST][:, column].tolist() == [True, True, False, False, False]
    # The last good observation, which is the one that the broken step was taken from.
    assert one["final"][one[f.FINAL_INDEX][0, column]].tolist() == [1, 0, 1]
    two, column = found[1, 2]
    assert not two[f.FOLLOWS][0, column], "what it follows was discarded"
    assert two[f.OBS][0, column].tolist() == [1, 0, 0]
    assert collector.env.lane_env.attempt.tolist() == [0, 0, 0], "an episode that follows is tried for the first time"
    assert two[f.FIRST][0, column]


def make_trainer(env: Any = "CartPole-v1", **more: Any) -> Trainer:
    rollout = {"type": "fragments", "num_steps": 8, "num_fragments": 8}
    settings = {"num_lanes": 4, "batch_size": 32, "num_epochs": 1, "writers": [], "events": []}
    return Trainer("ppo", env, rollout=rollout, **{**settings, "total_timesteps": 1024, **more})


@pytest.mark.slow
def test_one_that_is_slow_hangs_or_dies_keeps_no_other_waiting(tmp_path: Path) -> None:
    # Lane by lane: a walk that raises now and then; with workers of its own, killed in the middle and one that hangs.
    hosting = Hosting.from_settings(
        EnvWorkerSettings(num_workers=4, step_timeout_seconds=2.0, max_restarts=1000, max_failures_in_a_row=100)
    )
    told: list[LaneFault] = []
    hosting.faults.listen(lambda fault, line: told.append(fault), told.append)
    kwargs = {"paths": [str(tmp_path / name) for name in ("hang", "raise")]}
    env = ReadyLanes(
        gym_env(GymSettings(id="tests.envs.fragile:BreaksByLane", kwargs=kwargs), 4, Rng(1), hosting=hosting)
    )
    try:
        policy = LinearPolicy(env.spec)
        collector = FragmentCollector(env, policy, Rng(0), declared(), num_steps=T, deadline_seconds=0.001)
        block = FragmentBlock(env.spec, declared(), num_lanes=6, num_steps=T)
        counts = np.zeros(4, np.int64)
        num_blocks, during_hang = 0, 0
        crew: Any = env.lane_env.crew
        while {fault.code for fault in told} != {"E0501", "E0507", "E0508"}:
            num_blocks += 1
            block.begin(num_blocks, num_blocks)
            if num_blocks == 2:
                (tmp_path / "hang").touch()
            if num_blocks == 3:
                (tmp_path / "raise").touch()
            if num_blocks == 4:
                os.kill(crew.workers[3].child.pid, signal.SIGKILL)
            assert collector.collect(block, num_blocks, never)
            during_hang += not any(fault.code == "E0508" for fault in told)
            counts += np.bincount(block.arrays[f.LANE][0], minlength=4)
            # An observation of a walk holds the sine of its first number; half a step would not.
            obs = block.arrays[f.OBS]
            np.testing.assert_allclose(obs[..., 2], np.sin(obs[..., 0]), atol=1e-6)
    finally:
        env.close()
    assert during_hang > 3, "the others waited for the one that hung"
    assert counts.sum() == 6 * num_blocks
    assert collector.num_collected == 6 * num_blocks * T + int(collector.cursor.sum())


@pytest.mark.parametrize("placement", ["local", "threads", "processes"])
def test_a_run_trains_in_every_placement_and_accounts_for_every_step(placement: str) -> None:
    rows: list[dict[str, float]] = []
    writer = SimpleNamespace(add_scalar=lambda name, value, step: rows.append({"step": step, name: value}))
    trainer = make_trainer(placement=placement, max_staleness=int(placement != "local"), writer=writer)
    trainer.train()
    assert trainer.source.exactness == "statistical: lanes do not wait for each other"
    assert trainer.progress.env_steps == 1024
    trainer.close()
    columns: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        step = int(row.pop("step"))
        [(name, value)] = row.items()
        columns.setdefault(name, []).append((step, value))
    assert len(columns["fragments/collected"]) > 3
    names = ("fragments/collected", "fragments/open", "fragments/dropped")
    for (step, all_steps), (_, unfinished), (_, dropped) in zip(*(columns[name] for name in names), strict=True):
        # Metrics come with the batch that was learned from, so that no other batch is in between.
        assert all_steps == step + unfinished + dropped


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_replaying_fragments_of_a_recurrent_policy_equals_the_rollout(cell: str) -> None:
    lanes = scripted_env(SCRIPT, "lanes")
    lanes.faults = Hosting.from_settings(EnvWorkerSettings()).faults
    env = ReadyLanes(lanes)
    env.steps = Straggling(env.steps, np.random.default_rng(2), {2: [2]})
    memory = MemorySettings(cell=cell, size=4)
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), memory=memory), env.spec, Rng(0))
    with torch.no_grad():
        policy.actor[-1].weight.mul_(100)
    fields = policy.declare_fields()
    collector = FragmentCollector(env, policy, Rng(0), fields, num_steps=T, deadline_seconds=0.0)
    block = FragmentBlock(env.spec, fields, num_lanes=24, num_steps=T)
    block.begin(1, 0)
    assert collector.collect(block, 0, never)
    names = (f.OBS, f.ACTION, f.LOG_PROB, f.VALUE)
    [everything] = MinibatchSampler(Rng(1)).lanes(Batch(block), names, 24 * T, 0)
    with torch.no_grad():
        again = policy.evaluate_actions(everything)
    torch.testing.assert_close(again[f.LOG_PROB], everything[f.LOG_PROB], atol=1e-5, rtol=0)
    torch.testing.assert_close(again[f.VALUE], everything[f.VALUE], atol=1e-5, rtol=0)
    assert everything[f.FIRST].any()
    assert everything[f.LOG_PROB].std() > 0.01
    # Lane 2 broke in its third step: the second is bootstrapped with the memory after two observations, not three.
    column = next(c for c in range(24) if block.arrays[f.LANE][0, c] == 2 and block.arrays[f.FRAGMENT][0, c] == 1)
    state, slot = policy.initial_state(1), Rollout(env.spec, fields, num_lanes=1, num_steps=1).slots[0]
    with torch.no_grad():
        for t in range(2):
            slot.arrays[f.OBS][0], slot.arrays[f.FIRST][0] = (2, 0, t), t == 0
            policy.act(slot, state)
        expected = policy.value_of(torch.tensor([[2.0, 0.0, 2.0]]), state)
    assert block.arrays[f.FINAL_VALUE][1, column] == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"env": "native/CartPole-v1"}, "steps all its lanes together"),
        ({"algorithm": "grpo", "group_size": 2}, "begins all lanes together"),
    ],
)
def test_refusals(more: dict[str, Any], said: str) -> None:
    algorithm, env = more.pop("algorithm", "ppo"), more.pop("env", "CartPole-v1")
    rollout = {"type": "fragments", "num_steps": 64, "num_fragments": 8}
    with pytest.raises(SettingsError, match=said):
        Trainer(algorithm, env, rollout=rollout, num_lanes=4, writers=[], events=[], **more)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_counts_what_it_lost(tmp_path: Path) -> None:
    words = ["train", "ppo", "CartPole-v1", "num_lanes=4", "rollout.type=fragments", "rollout.num_steps=8",
             "rollout.num_fragments=8", "batch_size=32", "num_epochs=1", "checkpoint.every_updates=2",
             "total_timesteps=100M", "--run-id", "k", "--quiet"]  # fmt: skip
    process = start(tmp_path, words)
    metrics = tmp_path / "runs" / "k" / "metrics.jsonl"
    # It has a budget that it does not reach.
    wait_for(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= 10, process)
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    lines = metrics.read_text().splitlines()
    total = json.loads(lines[-2])["step"] + 6400
    status, printed = run(tmp_path, ["resume", "k", "--quiet", f"total_timesteps={total}"])
    assert status == 0, printed
    last = json.loads(metrics.read_text().splitlines()[-1])
    assert last["step"] >= total
    assert last["fragments/collected"] == last["step"] + sum(
        last[f"fragments/{name}"] for name in ("open", "discarded", "dropped")
    )
