"""Trajectories of all agents at once are those of each agent by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.data import fields as f
from quintain.data.rollout import Batch
from quintain.data.spec import BehaviorSpec, box
from quintain.data.trajectory import TrajectoryBlock
from quintain.envs.agents.boundary import Reports
from quintain.rollouts.agent_assembler import AgentAssembler
from tests.rollouts.agent_reference import PlainAssembler, Row, Said

SPEC = BehaviorSpec(obs=box(1), action=box(1))

# What an agent of one id does in one step of the environment: nothing, ask, end, or end and come again at once.
DOES = st.sampled_from(["nothing", "ask", "ask", "ask", "end", "interrupted", "end and ask"])
SCRIPTS = st.lists(st.lists(DOES, min_size=5, max_size=5), min_size=1, max_size=25)


def reports(said: list[Said], *, are_ends: bool = False) -> Reports:
    return Reports(
        ids=np.array([each.agent for each in said], np.int64),
        obs={f.OBS: np.array([[each.obs] for each in said], np.float32).reshape(-1, 1)},
        reward=np.array([each.reward for each in said], np.float32),
        group_id=np.array([each.group for each in said], np.int64),
        group_reward=np.array([each.group_reward for each in said], np.float32),
        interrupted=np.array([each.interrupted for each in said], np.bool_) if are_ends else None,
    )


class Both:
    """Runs the assembler and the plain one side by side."""

    def __init__(self, horizon: int) -> None:
        self.plain = PlainAssembler(horizon)
        self.assembler = AgentAssembler(SPEC, horizon)
        self.block = TrajectoryBlock(SPEC, num_rows=4)
        self.episodes: list[tuple[float, int]] = []
        self.ids: list[int] = []
        self.num_said = 0

    def step(self, ends: list[Said], decisions: list[Said]) -> None:
        # Actions are numbers that never come twice, so that a mix-up shows.
        actions = [1000.0 + self.num_said + i for i in range(len(decisions))]
        self.num_said += len(decisions)
        self.plain.step(ends, decisions, actions)
        closed, played = self.assembler.end(reports(ends, are_ends=True))
        self.episodes += zip(played.returns.tolist(), played.lengths.tolist(), strict=True)
        self.keep(closed)
        self.keep(self.assembler.decide(reports(decisions)))
        acted = np.array(actions, np.float32).reshape(-1, 1)
        self.assembler.act({f.OBS: reports(decisions).obs[f.OBS], f.ACTION: acted})

    def keep(self, closed: Any) -> None:
        if len(closed.lengths):
            self.ids += closed.ids.tolist()
            self.block.append(closed, self.assembler.steps)

    def rows(self) -> list[Row]:
        self.block.seal()
        columns = {name: self.block.array(name)[:-1, 0] for name in self.block.storage}
        last = self.block.final.array(f.OBS)[:, 0]
        return [
            Row(
                obs=float(columns[f.OBS][i, 0]),
                action=float(columns[f.ACTION][i, 0]),
                reward=float(columns[f.REWARD][i]),
                first=bool(columns[f.FIRST][i]),
                terminated=bool(columns[f.TERMINATED][i]),
                truncated=bool(columns[f.TRUNCATED][i]),
                done=bool(columns[f.DONE][i]),
                next_obs=float(last[index]) if (index := int(columns[f.FINAL_INDEX][i])) >= 0 else None,
            )
            for i in range(self.block.num_steps)
        ]


def play(script: list[list[str]], horizon: int) -> Both:
    both = Both(horizon)
    for step, does in enumerate(script):
        ends, decisions = [], []
        for agent, what in enumerate(does):
            # Ids come in another order than agents were met; numbers are exact in float32.
            name, number = (agent * 7 + 3) % 11, float(10 * step + agent)
            if what in ("end", "interrupted", "end and ask"):
                ends.append(Said(name, number, number / 4, 0.5, what == "interrupted", group=agent % 2))
            if what in ("ask", "end and ask"):
                decisions.append(Said(name, number + 0.5, number / 2, 0.25 * (agent % 2)))
        both.step(ends, decisions)
    return both


@settings(max_examples=150, deadline=None)
@given(SCRIPTS, st.integers(1, 6))
def test_trajectories_are_those_of_each_agent_by_itself(script: list[list[str]], horizon: int) -> None:
    both = play(script, horizon)
    expected = [row for _, rows in both.plain.trajectories for row in rows]
    assert both.rows() == expected
    assert both.ids == [agent for agent, _ in both.plain.trajectories]
    assert both.episodes == both.plain.episodes
    both.block.seal()
    batch = Batch(both.block)
    assert (batch.num_valid, batch.num_episodes) == (len(expected), len(both.plain.episodes))


@settings(max_examples=40, deadline=None)
@given(SCRIPTS, st.integers(1, 6), st.integers(0, 24))
def test_saved_anywhere_it_goes_on_as_if_nothing_had_happened(
    script: list[list[str]], horizon: int, place: int
) -> None:
    whole = play(script, horizon)
    first, rest = script[:place], script[place:]
    both = play(first, horizon)
    fresh = Both(horizon)
    fresh.assembler.load_state_dict(both.assembler.state_dict())
    fresh.block.load_state_dict(both.block.state_dict())
    both.assembler, both.block = fresh.assembler, fresh.block
    for step, does in enumerate(rest, start=len(first)):
        ends, decisions = [], []
        for agent, what in enumerate(does):
            name, number = (agent * 7 + 3) % 11, float(10 * step + agent)
            if what in ("end", "interrupted", "end and ask"):
                ends.append(Said(name, number, number / 4, 0.5, what == "interrupted", group=agent % 2))
            if what in ("ask", "end and ask"):
                decisions.append(Said(name, number + 0.5, number / 2, 0.25 * (agent % 2)))
        both.step(ends, decisions)
    assert both.rows() == whole.rows()


def test_the_horizon_cuts_and_the_next_trajectory_goes_on_from_there() -> None:
    both = Both(horizon=2)
    for number in range(6):
        both.step([], [Said(7, float(number), 1.0)])
    rows = both.rows()
    # Five steps are known after six reports; two trajectories of two are whole.
    assert [row.obs for row in rows] == [0.0, 1.0, 2.0, 3.0]
    assert [row.first for row in rows] == [True, False, False, False]
    assert [row.next_obs for row in rows] == [None, 2.0, None, 4.0]
    assert both.block.num_episodes == 0


def test_an_interrupted_episode_is_bootstrapped_and_a_true_end_is_not() -> None:
    for interrupted, next_obs in ((True, 9.0), (False, None)):
        both = Both(horizon=8)
        both.step([], [Said(1, 0.0, 0.0)])
        both.step([Said(1, 9.0, 2.0, interrupted=interrupted)], [])
        [row] = both.rows()
        assert (row.reward, row.truncated, row.terminated, row.next_obs) == (
            2.0, interrupted, not interrupted, next_obs,
        )  # fmt: skip


def test_an_id_may_end_and_begin_again_in_one_step() -> None:
    both = Both(horizon=8)
    both.step([], [Said(1, 0.0, 0.0)])
    both.step([Said(1, 1.0, 5.0)], [Said(1, 2.0, 100.0)])
    both.step([Said(1, 3.0, 7.0)], [])
    # The reward that came with the first decision of the new episode is nobody's: no action led to it.
    assert [(row.obs, row.reward, row.first, row.terminated) for row in both.rows()] == [
        (0.0, 5.0, True, True),
        (2.0, 7.0, True, True),
    ]
    assert both.episodes == [(5.0, 1), (7.0, 1)]


def test_the_end_of_an_agent_that_never_acted_is_dropped() -> None:
    both = Both(horizon=8)
    both.step([Said(4, 1.0, 5.0)], [])
    assert both.rows() == []
    assert both.episodes == []


def test_groups_come_with_the_trajectories_and_their_rewards_are_added() -> None:
    assembler = AgentAssembler(SPEC, horizon=4)
    assembler.decide(reports([Said(1, 0.0, 0.0), Said(2, 0.0, 0.0)]))
    assembler.act({f.OBS: np.zeros((2, 1), np.float32), f.ACTION: np.zeros((2, 1), np.float32)})
    closed, played = assembler.end(reports([Said(2, 1.0, 1.0, 10.0, group=6)], are_ends=True))
    assert closed.group_id.tolist() == [6]
    assert (played.returns.tolist(), played.numbers.tolist()) == ([11.0], [1])
    block = TrajectoryBlock(SPEC, 4)
    block.append(closed, assembler.steps)
    assert block.faces[f.REWARD][:1, 0].tolist() == [11.0]


def test_a_block_that_grew_keeps_what_it_had_and_can_be_learned_from() -> None:
    both = play([["ask"] * 5] * 20, horizon=3)
    assert both.block.capacity > 4
    assert [row.obs for row in both.rows()] == [row.obs for _, rows in both.plain.trajectories for row in rows]
    grown = torch.ones(1, requires_grad=True) * both.block.flat(f.VALUE).sum()
    grown.backward()
