"""Transitions over several rewards, compared with following each episode from its start by brute force."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from quintain.data import fields as f
from quintain.data.replay_memory import ReplayMemory
from quintain.data.rollout import Rollout
from quintain.data.row_layout import RowLayout
from quintain.data.spec import BehaviorSpec, box, discrete
from quintain.data.transitions import TransitionWriter
from quintain.testing import differences
from tests.declared import declared

SPEC = BehaviorSpec(obs=box(1), action=discrete(5), mask_size=5)
GAMMA = 0.5  # powers of one half are exact in float32
LANES = 3


@dataclass
class Step:
    """What one step of one lane was; observations are numbers that occur once."""

    obs: float
    after: float
    reward: float
    terminated: bool = False
    truncated: bool = False
    valid: bool = True
    first: bool = False

    @property
    def ends(self) -> bool:
        return self.valid and (self.terminated or self.truncated)


def play(num_steps: int, seed: int, block_steps: int = 1) -> list[list[Step]]:
    """Plays lanes in which everything happens: ends, time-outs, both at once, steps that broke, and between blocks
    episodes that are left without an end."""
    chance = np.random.default_rng(seed)
    lanes = []
    for lane in range(LANES):
        number, steps, first = 1000.0 * lane, [], True
        for t in range(num_steps):
            fate = chance.random()
            step = Step(number, number + 1, float(chance.integers(-8, 8)), first=first)
            step.terminated, step.truncated = fate < 0.08, 0.05 < fate < 0.2
            step.valid = not 0.2 < fate < 0.28
            is_cut = 0.28 < fate < 0.4 and (t + 1) % block_steps == 0
            number += 1
            first = step.ends or not step.valid or is_cut
            # The observation after an end belongs to another episode, and so has another number.
            number += 100 if first else 0
            steps.append(step)
        lanes.append(steps)
    return lanes


def expected(lanes: list[list[Step]], n: int) -> set[tuple[float, float, float, float]]:
    """Returns (obs, reward, discount, next_obs) of every transition that is complete."""
    found = set()
    for steps in lanes:
        for start, begun in enumerate(steps):
            if not begun.valid:
                continue
            total, discount, last, is_complete = 0.0, 1.0, begun, False
            for k in range(start, len(steps)):
                step = steps[k]
                if k > start and (step.first or not step.valid):
                    is_complete = True  # left without an end; nothing more is known of it
                    break
                total, discount, last = total + discount * step.reward, discount * GAMMA, step
                if step.ends or k == start + n - 1:
                    is_complete = True
                    break
            if is_complete:
                found.add((begun.obs, total, 0.0 if last.terminated else discount, last.after))
    return found


def fill(block: Rollout, lanes: list[list[Step]], start: int) -> np.ndarray:
    """Writes steps of all lanes into a block as a collector does; returns the rewards."""
    block.begin(1, version=0)
    for t in range(block.num_steps):
        now = [steps[start + t] for steps in lanes]
        following = [steps[start + t + 1] if start + t + 1 < len(steps) else None for steps in lanes]
        block.write(f.OBS, t, np.array([[s.obs] for s in now], np.float32))
        block.write(f.ACTION, t, np.array([int(s.obs) % 5 for s in now]))
        block.write(f.ACTION_MASK, t, np.array([[True] * 4 + [s.obs % 2 == 0] for s in now]))
        block.write(f.REWARD, t, np.array([s.reward for s in now], np.float32))
        block.write(f.TERMINATED, t, np.array([s.terminated for s in now]))
        block.write(f.TRUNCATED, t, np.array([s.truncated for s in now]))
        block.write(f.VALID, t, np.array([s.valid for s in now]))
        block.write(f.FIRST, t, np.array([s.first for s in now]))
        done = np.array([s.ends for s in now])
        block.write(f.DONE, t, done)
        # The slot after an end has the first observation of the next episode.
        rows = [[s.after if n is None or not n.first else n.obs] for s, n in zip(now, following, strict=True)]
        is_cut = [n is not None and n.first and not s.ends and s.valid for s, n in zip(now, following, strict=True)]
        rows = [[s.after] if cut else row for s, cut, row in zip(now, is_cut, rows, strict=True)]
        block.write(f.OBS, t + 1, np.array(rows, np.float32))
        block.write(f.ACTION_MASK, t + 1, np.array([[True] * 4 + [row[0] % 2 == 0] for row in rows]))
        if done.any():
            which = np.flatnonzero(done)
            last = np.array([[now[lane].after] for lane in which], np.float32)
            block.add_final_obs(t, which, {f.OBS: last}, block.policy_state)
    return block.array(f.REWARD)[:-1]


def write(lanes: list[list[Step]], n: int, block_steps: int, buffer_size: int = 5000) -> ReplayMemory:
    memory = ReplayMemory(RowLayout(SPEC), buffer_size)
    writer = TransitionWriter(memory, LANES, n)
    block = Rollout(SPEC, num_lanes=LANES, num_steps=block_steps, fields=declared())
    for start in range(0, len(lanes[0]), block_steps):
        writer.write(block, fill(block, lanes, start), GAMMA)
    return memory


def found(memory: ReplayMemory) -> list[tuple[float, float, float, float]]:
    fields = memory.draw(np.arange(len(memory)))
    return list(
        zip(
            fields[f.OBS][:, 0].tolist(),
            fields[f.REWARD].tolist(),
            fields[f.DISCOUNT].tolist(),
            fields["next_obs"][:, 0].tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("block_steps", [1, 4])
def test_every_transition_is_what_following_its_episode_gives(n: int, block_steps: int) -> None:
    lanes = play(240, n, block_steps)
    kinds = {(s.terminated, s.truncated, s.valid) for steps in lanes for s in steps}
    assert len(kinds) >= 5, "the script misses a kind of step"
    rows = found(write(lanes, n, block_steps))
    assert len(rows) == len(set(rows))
    assert set(rows) == expected(lanes, n)


def test_what_was_done_stays_with_what_was_seen() -> None:
    lanes = play(120, seed=9)
    fields = write(lanes, 3, 1).draw(np.arange(150))
    assert fields[f.ACTION].tolist() == [int(obs) % 5 for obs in fields[f.OBS][:, 0].tolist()]
    assert fields[f.ACTION_MASK][:, 4].tolist() == [obs % 2 == 0 for obs in fields[f.OBS][:, 0].tolist()]


def test_masks_of_another_episode_are_not_taken_over() -> None:
    lanes = play(200, seed=2)
    after_end = {s.after for steps in lanes for s in steps if s.ends}
    fields = write(lanes, 1, 1).draw(np.arange(400))
    for obs, mask in zip(fields["next_obs"][:, 0].tolist(), fields["next_action_mask"].tolist(), strict=True):
        assert mask == [True] * 4 + [True if obs in after_end else obs % 2 == 0]


def test_by_hand_over_three_rewards() -> None:
    # One lane of four steps with rewards 1, 2, 4, 8; the episode runs out of time after the fourth.
    lanes = [[Step(i, i + 1, 2.0**i, truncated=i == 3, first=i == 0) for i in range(4)] for _ in range(LANES)]
    lanes[1][3].terminated = True
    rows = found(write(lanes, 3, 1))
    # From step 0: 1 + 2/2 + 4/4 = 3, and 1/8 of the value of observation 3. From step 1: 2 + 4/2 + 8/4 = 6, then 4.
    # From step 2 only two rewards are left, 4 + 8/2 = 8, and from step 3 one, 8; both lead to the last observation.
    time_out = [(0.0, 3.0, 0.125, 3.0), (1.0, 6.0, 0.125, 4.0), (2.0, 8.0, 0.25, 4.0), (3.0, 8.0, 0.5, 4.0)]
    true_end = [(0.0, 3.0, 0.125, 3.0), (1.0, 6.0, 0.0, 4.0), (2.0, 8.0, 0.0, 4.0), (3.0, 8.0, 0.0, 4.0)]
    assert sorted(rows) == sorted([*time_out, *true_end, *time_out])


def test_a_restored_writer_continues_like_the_other() -> None:
    lanes = play(80, seed=4)
    block = Rollout(SPEC, num_lanes=LANES, num_steps=1, fields=declared())
    memories = [ReplayMemory(RowLayout(SPEC), 50) for _ in range(2)]
    writers = [TransitionWriter(memory, LANES, 4) for memory in memories]
    for start in range(80):
        if start == 41:
            assert writers[0].num_open.any()
            memories[1].load_state_dict(memories[0].state_dict())
            writers[1].load_state_dict(writers[0].state_dict())
        for writer in writers if start >= 41 else writers[:1]:
            writer.write(block, fill(block, lanes, start), GAMMA)
    assert memories[0].state_dict() == memories[1].state_dict()
    assert not list(differences(writers[0].state_dict(), writers[1].state_dict()))
