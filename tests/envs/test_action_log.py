"""The log gives back every action since a lane's reset, however long the others' episodes are."""

from __future__ import annotations

import numpy as np
import pytest

from quintain.data.spec import DiscreteSpec, box
from quintain.envs.hosts.action_log import ActionLog

CHOICE = {"action": DiscreteSpec(9)}
NUMBERS = {"action": box(3)}


def append(log: ActionLog, action: np.ndarray) -> None:
    log.append({"action": action})


def since_reset(log: ActionLog, lane: int) -> list:
    return [step["action"].tolist() for step in log.since_reset(lane)]


@pytest.mark.parametrize("periods", [(7, 11), (3000, 5), (10_000, 10_000), (1, 1)])
def test_since_reset_matches_a_plain_list(periods: tuple[int, ...]) -> None:
    log = ActionLog(len(periods), CHOICE)
    expected: list[list[int]] = [[] for _ in periods]
    for step in range(5000):
        action = np.array([step * 10 + lane for lane in range(len(periods))])
        append(log, action)
        for lane, period in enumerate(periods):
            expected[lane].append(int(action[lane]))
            if step % period == period - 1:
                log.start_episode(lane)
                expected[lane] = []
        if step % 499 == 0:
            assert [since_reset(log, lane) for lane in range(len(periods))] == expected
    assert [since_reset(log, lane) for lane in range(len(periods))] == expected


def test_memory_does_not_grow_when_episodes_end() -> None:
    log = ActionLog(2, CHOICE)
    for step in range(20_000):
        append(log, np.array([step, step]))
        if step % 100 == 0:
            log.start_episode(step // 100 % 2)
    assert len(log.rows["action"]) == 1024


def test_only_what_is_needed_is_saved_and_it_comes_back() -> None:
    log = ActionLog(2, NUMBERS)
    for step in range(1500):
        append(log, np.full((2, 3), step, np.float32))
        if step == 1000:
            log.start_episode(0)
        if step == 1499 - 1:
            log.start_episode(1)
    saved = log.state_dict()
    assert len(saved["rows"]["action"]) == 499  # steps 1001 to 1499 of lane 0, the longer one
    restored = ActionLog(2, NUMBERS)
    restored.load_state_dict(saved)
    for lane in range(2):
        assert since_reset(restored, lane) == since_reset(log, lane)
    append(restored, np.full((2, 3), -1, np.float32))
    assert since_reset(restored, 1) == [[1499] * 3, [-1] * 3]


def test_a_longer_log_than_the_first_allocation_comes_back() -> None:
    log, restored = ActionLog(1, CHOICE), ActionLog(1, CHOICE)
    for step in range(3000):
        append(log, np.array([step % 9]))
    restored.load_state_dict(log.state_dict())
    assert since_reset(restored, 0) == [step % 9 for step in range(3000)]
