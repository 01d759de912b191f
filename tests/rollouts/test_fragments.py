"""Lanes that do not wait: their fragments hold every step once, in order, and are estimated over their borders."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
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
from quintain.envs.hosts.faults import DIED, LaneFault
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.ready_lanes import ReadyLanes
from quintain.envs.settings import GymSettings
from quintain.errors import EnvError, SettingsError
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


@pytest.mark.parametrize("seed", range(3))
def test_two_ranks_estimate_what_one_does(seed: int) -> None:
    """Lanes belong to one rank, so that no border is between two of them; draws may leave any fragment out."""
    random = np.random.default_rng(seed)
    spec = scripted_env(SCRIPT, "lanes").spec
    whole = FragmentBlock(spec, declared(), num_lanes=12, num_steps=T)
    whole.begin(1, 0)
    # Of each of 4 lanes 3 fragments, two of which are consecutive; some do not follow the one before.
    names = (f.REWARD, f.VALUE, f.FINAL_VALUE)
    for column, (lane, number) in enumerate(itertools.product(range(4), (1, 2, 4))):
        for name, known in ((f.LANE, lane), (f.FRAGMENT, number), (f.FOLLOWS, random.random() < 0.7)):
            whole.arrays[name][:, column] = known
        for name in names:
            whole.arrays[name][:, column] = random.normal(size=T + 1)
        ends = random.random(T + 1) < 0.2
        whole.arrays[f.DONE][:, column] = ends
        whole.arrays[f.TERMINATED][:, column] = ends & (random.random(T + 1) < 0.5)

    def estimated(columns: list[int]) -> dict[tuple[int, int], list[float]]:
        block = FragmentBlock(spec, declared(), num_lanes=len(columns), num_steps=T)
        block.begin(1, 0)
        block.put([whole.fragment(column) for column in columns])
        steps = (block.array(name)[:-1] for name in (f.REWARD, f.FINAL_VALUE, f.TERMINATED, f.DONE, f.VALID))
        reward, final_value, ends, done, valid = steps
        found = block.over_borders(
            functools.partial(generalized_advantages, gamma=0.9, gae_lambda=0.8),
            reward, block.array(f.VALUE), final_value, ends, done, valid,
        )  # fmt: skip
        held = zip(block.array(f.LANE)[0].tolist(), block.array(f.FRAGMENT)[0].tolist(), strict=True)
        return {each: found[:, column].tolist() for column, each in enumerate(held)}

    order = random.permutation(12).tolist()
    ranks = [[column for column in order if column // 6 == rank] for rank in range(2)]
    assert estimated(ranks[0]) | estimated(ranks[1]) == estimated(list(range(12)))


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


def test_a_lane_that_waits_for_an_action_and_goes_down_with_its_worker_is_cut_where_it_stood() -> None:
    """Both lanes are of one worker. Lane 1 has a complete fragment and waits for a block when lane 0 kills it."""
    lanes = scripted_env([[Episode(99, "terminated")]] * 2, "lanes")
    lanes.faults = Hosting.from_settings(EnvWorkerSettings()).faults
    env = ReadyLanes(lanes)
    memory = MemorySettings(cell="gru", size=4)
    policy = ActorCritic(ActorCriticSettings(hidden_sizes=(8,), memory=memory), env.spec, Rng(0))
    fields = policy.declare_fields()
    collector = FragmentCollector(env, policy, Rng(0), fields, num_steps=T, deadline_seconds=0.0)
    blocks = [FragmentBlock(env.spec, fields, num_lanes=1, num_steps=T) for _ in range(2)]
    for number, block in enumerate(blocks, 1):
        block.begin(number, 0)
    assert collector.collect(blocks[0], 0, never)
    assert (collector.is_ready.tolist(), collector.cursor.tolist()) == ([False, True], [0, T])
    finished, died = env.steps.finished, LaneFault((0, 1), "step", "it died", "", code="E0507", warning=DIED)
    told = [died]

    def dies(seconds: float) -> tuple[list[int], list[LaneFault]]:
        found, faults = finished(seconds)
        return ([0, 1], told) if told else (found, faults)

    env.steps.finished = dies  # type: ignore[method-assign]
    collector._receive()
    told = []
    assert not collector.is_ready.any()
    assert collector.collect(blocks[1], 0, never)
    block = blocks[1]
    assert block.arrays[f.LANE][0, 0] == 1
    assert block.arrays[f.TRUNCATED][:T, 0].tolist() == [False, False, False, True]
    assert block.arrays[f.OBS][T, 0].tolist() == [1, 0, 0], "the environment that was made again"
    state, slot = policy.initial_state(1), Rollout(env.spec, fields, num_lanes=1, num_steps=1).slots[0]
    with torch.no_grad():
        for t in range(T):
            slot.arrays[f.OBS][0], slot.arrays[f.FIRST][0] = (1, 0, t), t == 0
            policy.act(slot, state)
        expected = policy.value_of(torch.tensor([[1.0, 0.0, T]]), state)
    assert block.arrays[f.FINAL_VALUE][T - 1, 0] == pytest.approx(float(expected), abs=1e-6)
    # Lane 0 was stepping, and lane 1 was not.
    assert collector.num_broken == 1
    assert collector.num_collected == 2 * T + int(collector.cursor.sum())


@pytest.mark.parametrize("when", ["reset", "step"])
def test_an_end_whose_reset_breaks_is_kept(when: str) -> None:
    """An episode that ended before its environment broke is whole, with its reward and its last observation."""
    lanes = scripted_env([[Episode(2, "terminated")]], "lanes")
    lanes.faults = Hosting.from_settings(EnvWorkerSettings()).faults
    env = ReadyLanes(lanes)
    finished, num_looks = env.steps.finished, itertools.count(1)

    def breaks(seconds: float) -> tuple[list[int], list[LaneFault]]:
        found, _ = finished(seconds)
        return found, [LaneFault((0,), when, "it broke", "")] if next(num_looks) == 2 else []

    env.steps.finished = breaks  # type: ignore[method-assign]
    policy = LinearPolicy(env.spec)
    collector = FragmentCollector(env, policy, Rng(0), declared(), num_steps=T, deadline_seconds=0.0)
    block = FragmentBlock(env.spec, declared(), num_lanes=1, num_steps=T)
    block.begin(1, 0)
    assert collector.collect(block, 0, never)
    ends = [block.arrays[name][:T, 0].tolist() for name in (f.TERMINATED, f.TRUNCATED)]
    last = block.final.array(f.OBS).tolist()
    if when == "reset":
        # (lane, episode, step); made again, its episodes are counted from 0.
        assert ends == [[False, True, False, True], [False] * 4]
        assert last == [[0, 0, 2], [0, 0, 2]]
        assert collector.num_broken == 0
    else:
        # The second step is discarded: after the cut come two steps of one episode, and one of the next.
        assert ends == [[False, False, True, False], [True, False, False, False]]
        assert last == [[0, 0, 1], [0, 0, 2]]
        assert collector.num_broken == 1
    rewards = block.arrays[f.REWARD][:T, 0].tolist()
    assert rewards[:2] == ([1.0, 1.5] if when == "reset" else [1.0, 1.0])


class Odd(gymnasium.Env[Any, Any]):
    """Episodes of three steps; each second one reaches its goal, and the second reward is infinite."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    num_episodes = num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps, self.num_episodes = 0, self.num_episodes + 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        obs = np.full(1, np.nan if self.num_steps == 1 else 0.5, np.float32)
        reward = np.inf if self.num_steps == 2 else 1.0
        info = {"is_success": self.num_episodes % 2 == 0, "height": 3.0}
        return obs, reward, self.num_steps == 3, False, info


@pytest.mark.parametrize("placement", ["local", "processes"])
def test_values_that_are_not_finite_and_what_environments_say_of_episodes(placement: str) -> None:
    rows: dict[int, dict[str, float]] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: rows.setdefault(step, {}).update({name: value}))
    more = {"env.on_nonfinite": "clamp", "env.info_metrics": ["height"], "num_lanes": 2, "total_timesteps": 192}
    trainer = make_trainer(functools.partial(Odd), writer=writer, placement=placement, **more)
    trainer.train()
    block = trainer.taken.rollout
    assert set(block.array(f.REWARD)[:-1].ravel().tolist()) == {1.0, 1e6}
    assert np.isfinite(block.array(f.OBS)).all()
    *_, last = rows.values()
    assert last["rollout/success_rate"] == pytest.approx(0.5, abs=0.1)
    assert last["info/height"] == 3.0
    # Two of three steps.
    assert last["rollout/clamped_steps"] == pytest.approx(last["fragments/collected"] * 2 / 3, abs=2)
    trainer.close()


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
        # One fault after another: a worker that is killed while it raises or hangs reports only its death.
        strikes = {
            "E0501": (tmp_path / "raise").touch,
            "E0507": lambda: os.kill(crew.workers[3].child.pid, signal.SIGKILL),
            "E0508": (tmp_path / "hang").touch,
        }
        awaited = ""
        while strikes or awaited not in {fault.code for fault in told}:
            if strikes and (not awaited or awaited in {fault.code for fault in told}):
                awaited = next(iter(strikes))
                strikes.pop(awaited)()
            num_blocks += 1
            block.begin(num_blocks, num_blocks)
            assert collector.collect(block, num_blocks, never)
            during_hang += awaited == "E0508" and not any(fault.code == "E0508" for fault in told)
            counts += np.bincount(block.arrays[f.LANE][0], minlength=4)
            # An observation of a walk holds the sine of its first number; half a step would not.
            obs = block.arrays[f.OBS]
            np.testing.assert_allclose(obs[..., 2], np.sin(obs[..., 0]), atol=1e-6)
    finally:
        env.close()
    assert during_hang > 3, "the others waited for the one that hung"
    assert counts.sum() == 6 * num_blocks
    assert collector.num_collected == 6 * num_blocks * T + int(collector.cursor.sum())


ACCOUNTS = ("waiting", "open", "discarded", "dropped")


@pytest.mark.parametrize("max_reuse", [1, 2])
@pytest.mark.parametrize("placement", ["local", "threads", "processes"])
def test_a_run_trains_in_every_placement_and_accounts_for_every_step(placement: str, max_reuse: int) -> None:
    rows: dict[int, dict[str, float]] = {}
    writer = SimpleNamespace(add_scalar=lambda name, value, step: rows.setdefault(step, {}).update({name: value}))
    # A lane's fragment of 8 steps is open for several updates, so that some are too old.
    staleness = 0 if placement == "local" else 1
    more = {"num_collectors": 2, "report.every_updates": 3, "rollout.max_reuse": max_reuse}
    trainer = make_trainer(placement=placement, max_staleness=staleness, num_lanes=8, writer=writer, **more)
    trainer.train()
    assert trainer.source.exactness == "statistical: lanes do not wait for each other"
    assert trainer.progress.env_steps >= 1024
    trainer.close()
    assert len(rows) > 3
    for step, row in rows.items():
        # Of several updates a row has the last counts.
        accounts = {name: row[f"fragments/{name}"] for name in ACCOUNTS}
        assert row["fragments/collected"] == step + sum(accounts.values()), row
        dropped = [row[f"fragments/dropped_{reason}"] for reason in ("stale", "capacity", "session")]
        assert accounts["dropped"] == sum(dropped)
        assert 0.0 <= row["rollout/idle"] <= 1.0
        assert 1.0 <= row["rollout/reuse"] <= max_reuse
        assert staleness == 0 or row["rollout/staleness"] <= staleness
        assert row["rollout/dropped"] <= accounts["dropped"]


class Slow(gymnasium.Env[Any, Any]):
    """Steps take as long as they are told to."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    seconds = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self.seconds)
        return np.zeros(1, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("placement", ["local", "threads", "processes"])
def test_an_update_that_waits_too_long_says_what_is_missing(placement: str) -> None:
    trainer = make_trainer(
        functools.partial(Slow),
        **{"num_lanes": 2, "rollout.timeout_seconds": 0.3, "placement": placement, "env_workers.num_workers": 2},
    )
    # Slow from the first step on: on a busy machine quick ones may take as long as that too.
    trainer.source.set_env_parameters({"seconds": 30.0})
    with pytest.raises(
        EnvError,
        match=r"no fragment of 8 steps was completed for 0.3 s, and \d+ of the block are missing"
        r". Of the lanes 0, 1 are stepping",
    ) as told:
        trainer.advance()
    assert told.value.code == "E0518"
    trainer.close()


@pytest.mark.parametrize("max_staleness", [1, 2])
def test_collectors_wait_while_the_learner_takes_nothing(max_staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[FragmentCollector] = []
    collect = FragmentCollector.collect

    def noted(self: FragmentCollector, *arguments: Any) -> bool:
        taken[:] = [self]
        return collect(self, *arguments)

    monkeypatch.setattr(FragmentCollector, "collect", noted)
    trainer = make_trainer(placement="threads", max_staleness=max_staleness)
    assert trainer._stage_collect()
    # The block that was taken, one ahead however old fragments may be, and one unfinished fragment of each lane.
    num_steps = 2 * 8 * 8
    wait_for(lambda: taken[0].num_collected >= num_steps)
    time.sleep(0.1)
    assert taken[0].num_collected <= num_steps + 4 * 8
    trainer.close()


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_batch_of_any_size_is_fetched_by_request(max_staleness: int) -> None:
    trainer = make_trainer(placement="threads", **{"max_staleness": max_staleness, "rollout.capacity": 40})
    for num_fragments in (8, 1, 29, 40, 3):
        trainer.learner.store.request(num_fragments)
        assert trainer._stage_collect()
        assert trainer._stage_estimate()
        assert trainer.batch.rollout.num_lanes == num_fragments
        lanes, numbers = (trainer.batch.rollout.array(name)[0].tolist() for name in (f.LANE, f.FRAGMENT))
        assert len(set(zip(lanes, numbers, strict=True))) == num_fragments
        assert trainer._stage_publish()
        trainer.learner.mark_consumed()
    trainer.close()


def assert_every_end_is_valued_with_its_own_memory(block: FragmentBlock, policy: ActorCritic) -> None:
    """Replays each fragment by itself up to each end that is bootstrapped."""
    slot = Rollout(block.spec, policy.declare_fields(), num_lanes=1, num_steps=1).slots[0]
    ends = np.argwhere(block.arrays[f.DONE][:T] & ~block.arrays[f.TERMINATED][:T]).tolist()
    assert len({tuple(end) for end in ends}) > 3
    for step, column in ends:
        state = block.policy_state[column : column + 1].clone()
        with torch.no_grad():
            for t in range(step + 1):
                for name in (f.OBS, f.FIRST):
                    slot.arrays[name][0] = block.arrays[name][t, column]
                policy.act(slot, state)
            last = block.final.array(f.OBS)[block.arrays[f.FINAL_INDEX][step, column]]
            expected = policy.value_of(torch.from_numpy(last[None]), state)
        assert block.arrays[f.FINAL_VALUE][step, column] == pytest.approx(float(expected), abs=1e-5)


def test_after_a_resume_or_a_cut_no_fragment_follows_one_from_before() -> None:
    blocks, collector = collected(0, num_blocks=3)
    newest = {lane: max(n for one, n in fragments_of(blocks) if one == lane) for lane in range(3)}
    saved, num_open = collector.state_dict(), int(collector.cursor.sum())
    assert num_open > 0
    for again in (collector.start_episodes, lambda: collector.load_state_dict(saved)):
        again()
        assert collector.num_discarded == num_open
        block = FragmentBlock(collector.env.spec, declared(), num_lanes=6, num_steps=T)
        block.begin(9, 0)
        assert collector.collect(block, 3, never)
        found = {(int(block.arrays[f.LANE][0, c]), int(block.arrays[f.FRAGMENT][0, c])): c for c in range(6)}
        for lane in {lane for lane, _ in found}:
            number, column = min((n, c) for (one, n), c in found.items() if one == lane)
            assert number > newest[lane]
            assert not block.arrays[f.FOLLOWS][0, column]
            assert block.arrays[f.FIRST][0, column]


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
    assert_every_end_is_valued_with_its_own_memory(block, policy)
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
        ({"env.on_nonfinite": "drop_episode"}, "drop_episode resets lanes between steps"),
    ],
)
def test_refusals(more: dict[str, Any], said: str) -> None:
    algorithm, env = more.pop("algorithm", "ppo"), more.pop("env", "CartPole-v1")
    rollout = {"type": "fragments", "num_steps": 64, "num_fragments": 8}
    with pytest.raises(SettingsError, match=said):
        Trainer(algorithm, env, rollout=rollout, num_lanes=4, writers=[], events=[], **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGKILL, ["placement=local"]),
        (signal.SIGTERM, ["placement=processes", "num_collectors=2", "max_staleness=2", "rollout.max_reuse=2"]),
    ],
)
def test_an_interrupted_run_goes_on_and_counts_what_it_lost(
    tmp_path: Path, number: signal.Signals, where: list[str]
) -> None:
    words = ["train", "ppo", "CartPole-v1", "num_lanes=4", "rollout.type=fragments", "rollout.num_steps=8",
             "rollout.num_fragments=8", "batch_size=32", "num_epochs=1", "checkpoint.every_updates=2",
             "total_timesteps=100M", "--run-id", "k", "--quiet"]  # fmt: skip
    process = start(tmp_path, [*words, *where])
    metrics = tmp_path / "runs" / "k" / "metrics.jsonl"
    # It has a budget that it does not reach.
    wait_for(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) >= 10, process)
    os.kill(process.pid, number)
    finish(process)
    lines = metrics.read_text().splitlines()
    total = json.loads(lines[-2])["step"] + 1600
    status, printed = run(tmp_path, ["resume", "k", "--quiet", f"total_timesteps={total}"])
    assert status == 0, printed
    rows = rows_of(tmp_path / "runs" / "k")
    assert rows[-1]["step"] >= total
    for row in rows:
        assert row["fragments/collected"] == row["step"] + sum(row[f"fragments/{name}"] for name in ACCOUNTS)


@pytest.mark.slow
def test_two_ranks_take_their_batches_together(tmp_path: Path) -> None:
    """Fragments that are too old leave one rank with too few: both collect more, or neither."""
    words = ["train", "ppo", "CartPole-v1", "num_lanes=4", "num_ranks=2", "placement=threads", "rollout.type=fragments",
             "rollout.num_steps=8", "rollout.num_fragments=8", "rollout.max_reuse=2", "max_staleness=1",
             "batch_size=32", "num_epochs=1", "total_timesteps=1200", "--run-id", "r", "--quiet"]  # fmt: skip
    status, printed = run(tmp_path, words)
    assert status == 0, printed
    rows = rows_of(tmp_path / "runs" / "r")
    assert rows[-1]["step"] >= 1200
    assert max(row["rollout/staleness"] for row in rows) <= 1
    assert rows[-1]["fragments/dropped"] > 0, "none was too old, which tests nothing"
    for row in rows:
        # Of all ranks.
        assert row["fragments/collected"] == row["step"] + sum(row[f"fragments/{name}"] for name in ACCOUNTS)
    # One rank with fragments of another length goes on counting for both; what they held is dropped.
    status, printed = run(tmp_path, ["resume", "r", "num_ranks=1", "rollout.num_steps=5", "total_timesteps=2k"])
    assert status == 0, printed
    later = rows_of(tmp_path / "runs" / "r")[len(rows) :]
    assert later[0]["fragments/dropped_session"] > rows[-1]["fragments/dropped_session"]
    for row in later:
        assert row["fragments/collected"] == row["step"] + sum(row[f"fragments/{name}"] for name in ACCOUNTS)


def rows_of(directory: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
