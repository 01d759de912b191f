"""What an agent's teammates saw, did and got, for all agents at once, is what each agent by itself would have noted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quintain.data import fields as f
from quintain.data.sequence_block import SequenceBlock
from quintain.data.spec import BehaviorSpec, box
from quintain.data.trajectory import TEAMMATES_REWARD, Closed, TrajectoryBlock
from quintain.rollouts.agent_assembler import AgentAssembler
from quintain.rollouts.teammates import teammates_table
from tests.declared import IN_GROUPS, declared
from tests.rollouts.agent_reference import Said
from tests.rollouts.group_reference import PlainGroups
from tests.rollouts.test_agent_assembler import reports

SPEC = BehaviorSpec(obs=box(1), action=box(1))
DOES = st.sampled_from(["nothing", "ask", "ask", "ask", "end", "interrupted", "end and ask"])
SCRIPTS = st.lists(st.lists(DOES, min_size=6, max_size=6), min_size=1, max_size=20)
GROUPS = st.lists(st.integers(0, 2), min_size=6, max_size=6)


class Both:
    """Runs the assembler and the plain one side by side."""

    def __init__(self, horizon: int) -> None:
        self.plain = PlainGroups(horizon)
        self.assembler = AgentAssembler(SPEC, horizon, f.TEAMMATE_FIELDS)
        self.block = TrajectoryBlock(SPEC, num_rows=4, fields=IN_GROUPS)
        self.trajectories: list[tuple[int, list[Any], list[float]]] = []
        self.num_said = 0

    def step(self, ends: list[Said], decisions: list[Said]) -> None:
        actions = [1000.0 + self.num_said + i for i in range(len(decisions))]
        self.num_said += len(decisions)
        self.plain.step(ends, decisions, actions)
        heard, asked = reports(ends, are_ends=True), reports(decisions)
        self.assembler.hear(heard, asked)
        if ends:
            self.keep(self.assembler.end(heard)[0])
        self.keep(self.assembler.decide(asked))
        acted = np.array(actions, np.float32).reshape(-1, 1)
        self.assembler.act({f.OBS: asked.obs[f.OBS], f.ACTION: acted})

    def keep(self, closed: Closed) -> None:
        if not len(closed.lengths):
            return
        self.block.append(closed, self.assembler.steps)
        assert closed.next_teammates is not None
        steps = self.assembler.steps
        for i, (slot, length) in enumerate(zip(closed.slots, closed.lengths, strict=True)):
            rows = [(shown(steps, slot, t), float(steps[TEAMMATES_REWARD][slot, t])) for t in range(int(length))]
            there = closed.next_teammates[f.TEAMMATES][i]
            assert not closed.next_teammates[f.TEAMMATE_OBS][i][~there].any(), "nobody stands there"
            after = sorted(closed.next_teammates[f.TEAMMATE_OBS][i, there, 0].tolist())
            self.trajectories.append((int(closed.ids[i]), rows, after))


def shown(steps: dict[str, Any], slot: int, t: int) -> list[tuple[float, float]]:
    there = steps[f.TEAMMATES][slot, t]
    seen, done = steps[f.TEAMMATE_OBS][slot, t], steps[f.TEAMMATE_ACTION][slot, t]
    assert not seen[~there].any(), "nobody stands there"
    assert not done[~there].any(), "nobody stands there"
    return sorted(zip(seen[there, 0].tolist(), done[there, 0].tolist(), strict=True))


def said_in(step: int, does: list[str], groups: list[int]) -> tuple[list[Said], list[Said]]:
    ends, decisions = [], []
    for agent, what in enumerate(does):
        # Ids come in another order than agents were met; numbers are exact in float32.
        name, number, group = (agent * 7 + 3) % 11, float(10 * step + agent), groups[agent]
        if what in ("end", "interrupted", "end and ask"):
            ends.append(Said(name, number, number / 4, 0.5, what == "interrupted", group=group))
        if what in ("ask", "end and ask"):
            decisions.append(Said(name, number + 0.5, number / 2, 0.25, group=group))
    return ends, decisions


def expected(plain: PlainGroups) -> list[tuple[int, list[Any], list[float]]]:
    return [
        (t.agent, [(sorted(teammates), got) for teammates, got in t.rows], sorted(t.after)) for t in plain.trajectories
    ]


@settings(max_examples=200, deadline=None)
@given(SCRIPTS, GROUPS, st.integers(1, 5))
def test_mates_are_those_that_each_agent_would_have_noted(
    script: list[list[str]], groups: list[int], horizon: int
) -> None:
    both = Both(horizon)
    for step, does in enumerate(script):
        both.step(*said_in(step, does, groups))
    assert both.trajectories == expected(both.plain)


@settings(max_examples=60, deadline=None)
@given(SCRIPTS, GROUPS, st.integers(1, 5), st.integers(0, 19))
def test_saved_anywhere_groups_go_on_as_if_nothing_had_happened(
    script: list[list[str]], groups: list[int], horizon: int, place: int
) -> None:
    both = Both(horizon)
    for step, does in enumerate(script):
        if step == place:
            fresh = Both(horizon)
            fresh.assembler.load_state_dict(both.assembler.state_dict())
            fresh.block.load_state_dict(both.block.state_dict())
            both.assembler, both.block = fresh.assembler, fresh.block
        both.step(*said_in(step, does, groups))
    assert both.trajectories == expected(both.plain)
    assert_block_holds(both)


def assert_block_holds(both: Both) -> None:
    """Compares what the block keeps with what each trajectory had."""
    block, row = both.block, 0
    block.seal()
    last = block.final.rows
    for agent, rows, after in both.trajectories:
        for teammates, _ in rows:
            there = block.array(f.TEAMMATES)[row, 0]
            seen, done = (block.array(name)[row, 0, :, 0] for name in (f.TEAMMATE_OBS, f.TEAMMATE_ACTION))
            assert sorted(zip(seen[there].tolist(), done[there].tolist(), strict=True)) == teammates
            assert not seen[~there].any()
            assert not done[~there].any()
            row += 1
        index = int(block.array(f.FINAL_INDEX)[row - 1, 0])
        # Something follows for an agent that did not really end, and for a group that has members left.
        assert (index >= 0) == (bool(after) or not block.array(f.TERMINATED)[row - 1, 0]), agent
        if index >= 0:
            there = last[f.TEAMMATES][index]
            assert sorted(last[f.TEAMMATE_OBS][index, there, 0].tolist()) == after
    assert row == block.num_steps


def test_rewards_of_mates_between_two_reports_add_up() -> None:
    both = Both(horizon=8)
    both.step([], [Said(1, 0.0, group=4), Said(2, 0.0, group=4), Said(3, 0.0, group=5)])
    # The first agent is silent for two steps, in which the second gets 2 and 3; the third is in another group.
    both.step([], [Said(2, 1.0, 2.0, group=4), Said(3, 1.0, 100.0, group=5)])
    both.step([], [Said(2, 2.0, 3.0, group=4), Said(3, 2.0, 100.0, group=5)])
    both.step([], [Said(1, 3.0, 50.0, group=4)])
    slot = both.assembler.slots.find(np.array([1]))[0]
    assert both.assembler.steps[TEAMMATES_REWARD][slot, 0] == 5.0
    assert both.assembler.steps[f.REWARD][slot, 0] == 50.0
    # The second has acted since, and hears of the first's 50 when it reports.
    both.step([Said(2, 4.0, 1.0, group=4)], [])
    assert both.trajectories[-1][1][-1][1] == 50.0


def test_a_group_that_begins_anew_does_not_go_on() -> None:
    both = Both(horizon=8)
    both.step([], [Said(1, 0.0, group=4), Said(2, 0.0, group=4)])
    # Both end, and others take their places in the same group at once.
    both.step([Said(1, 1.0, group=4), Said(2, 1.0, group=4)], [Said(11, 2.0, group=4), Said(12, 2.0, group=4)])
    assert [after for _, _, after in both.trajectories] == [[], []]
    # One ends, the other goes on beside a newcomer: the group of the one that ended is both.
    both.step([Said(11, 3.0, group=4)], [Said(12, 4.0, group=4), Said(13, 5.0, group=4)])
    assert both.trajectories[-1][2] == [4.0, 5.0]


def test_a_group_that_is_interrupted_together_is_valued_together() -> None:
    both = Both(horizon=8)
    both.step([], [Said(1, 0.0, group=4), Said(2, 0.0, group=4)])
    ends = [Said(1, 1.0, interrupted=True, group=4), Said(2, 2.0, interrupted=True, group=4)]
    both.step(ends, [Said(3, 9.0, group=4)])
    assert [after for _, _, after in both.trajectories] == [[2.0], [1.0]]


@pytest.mark.parametrize("num_agents", [0, 1, 5, 40])
def test_the_table_of_mates_is_that_of_a_loop(num_agents: int) -> None:
    rng = np.random.default_rng(num_agents)
    groups = rng.integers(-1, 4, num_agents)
    wanted, own = rng.integers(-1, 4, 7), np.full(7, -1)
    some = rng.permutation(num_agents)[:4]
    wanted[: len(some)], own[: len(some)] = groups[some], some
    table = teammates_table(groups, wanted, own)
    for row, group, me in zip(table, wanted, own, strict=True):
        teammates = [i for i in range(num_agents) if groups[i] == group and i != me and group > 0]
        assert row[row >= 0].tolist() == teammates
        assert (row[len(teammates) :] == -1).all()


def test_a_block_with_fewer_mates_than_before_keeps_nobody_from_before() -> None:
    block = TrajectoryBlock(SPEC, num_rows=4, fields=IN_GROUPS)
    sequences = SequenceBlock(SPEC, horizon=2, num_columns=1, fields={**declared(state=3), **IN_GROUPS})
    for width in (3, 1, 0, 2):
        steps = {
            **{name: np.full((1, 2, 1), 7.0, np.float32) for name in (f.OBS, f.ACTION)},
            **{name: np.ones((1, 2), np.float32) for name in (f.LOG_PROB, f.VALUE, f.REWARD, "group_reward")},
            f.POLICY_VERSION: np.zeros((1, 2), np.int64),
            f.TEAMMATES: np.ones((1, 2, width), np.bool_),
            f.TEAMMATE_OBS: np.full((1, 2, width, 1), 5.0, np.float32),
            f.TEAMMATE_ACTION: np.full((1, 2, width, 1), 6.0, np.float32),
            TEAMMATES_REWARD: np.full((1, 2), 10.0, np.float32),
        }
        one = np.ones(1, np.bool_)
        closed = Closed(
            slots=np.zeros(1, np.int64),
            ids=np.zeros(1, np.int64),
            lengths=np.array([2]),
            terminated=one,
            truncated=~one,
            begins=one,
            group_id=np.ones(1, np.int64),
            next_obs={f.OBS: np.zeros((1, 1), np.float32)},
            begin_state=np.zeros((1, 3), np.float32),
            last_state=np.zeros((1, 3), np.float32),
            next_teammates={
                f.TEAMMATES: np.ones((1, width), np.bool_),
                f.TEAMMATE_OBS: np.full((1, width, 1), 8.0, np.float32),
            },
        )
        for each in (block, sequences):
            each.begin(0, 0)
            each.append(closed, steps)
            each.seal()
            assert each.array(f.TEAMMATES)[:2, 0].sum(axis=1).tolist() == [width, width]
            assert each.array(f.TEAMMATE_OBS)[:2, 0].sum(axis=(1, 2)).tolist() == [5.0 * width] * 2
            assert each.array(f.TEAMMATE_ACTION)[:2, 0].sum(axis=(1, 2)).tolist() == [6.0 * width] * 2
            # Own, the group's, and the teammates'.
            assert each.array(f.REWARD)[:2, 0].tolist() == [12.0, 12.0]
            assert each.array(f.FINAL_INDEX)[:2, 0].tolist() == [-1, 0 if width else -1]
            if width:
                assert float(each.final.rows[f.TEAMMATE_OBS][0].sum()) == 8.0 * width
            # How wide it is depends on what it holds: a resumed run has not seen what was there before.
            assert each.state_dict()["fields"][f.TEAMMATE_OBS].shape[2] == width
