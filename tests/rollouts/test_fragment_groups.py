"""Several collectors fill one block of fragments with what each of them has: none waits for another's lanes."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.data import fields as f
from quintain.data.fragments import Ending, Fragment, FragmentBlock
from quintain.data.spec import BehaviorSpec, BoxSpec, DiscreteSpec
from quintain.services.events import After
from quintain.services.processes import unnamed_memory
from tests.rollouts.test_fragments import Slow, make_trainer
from tests.warm import ENVIRONMENT

ONE_PROCESS = {"type": "processes", "num_processes": 1}
SPEC = BehaviorSpec(obs=BoxSpec((1,), "float32", -np.inf, np.inf), action=DiscreteSpec(2))


def lanes_learned(trainer: Trainer, num_updates: int) -> list[tuple[int, int]]:
    """Trains; returns lane and number of every fragment that was learned from."""
    found: list[tuple[int, int]] = []

    def look(trainer: Trainer) -> None:
        block = trainer.taken.rollout
        found.extend(zip(block.array(f.LANE)[0].tolist(), block.array(f.FRAGMENT)[0].tolist(), strict=True))

    trainer.events.add(After("publish"), look)
    for _ in range(num_updates):
        trainer.advance()
    return found


@pytest.mark.parametrize("placement", ["local", "threads", "processes", ONE_PROCESS], ids=str)
def test_a_group_of_lanes_that_hang_keeps_no_other_group_waiting(placement: Any) -> None:
    trainer = make_trainer(Slow, placement=placement, num_collectors=2, **{"env_workers.num_workers": 4})
    # A step of lanes 2 and 3, the second group, takes longer than the test may.
    trainer.source.set_env_parameters({"seconds": np.array([0.0, 0.0, 600.0, 600.0])})
    found = lanes_learned(trainer, 4)
    assert len(found) == 4 * 8
    assert {lane for lane, _ in found} == {0, 1}
    trainer.close()


class Troubled(gymnasium.Env[Any, Any]):
    """Episodes of 20 steps; as it is told, a reset takes longer than any test, or the fifth step raises."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    hangs = raises = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if self.hangs:
            time.sleep(600)
        self.age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        if self.raises and self.age == 5:
            self.age = 10**6
            raise RuntimeError("the arm fell off")
        time.sleep(0.001)
        return np.array([self.age], np.float32), 0.0, False, self.age >= 20, {}


@pytest.mark.parametrize("num_collectors", [1, 2])
def test_lanes_whose_reset_hangs_and_that_raise_keep_no_other_waiting(num_collectors: int) -> None:
    workers = {"num_workers": 4, "max_restarts": 10**6, "max_failures_in_a_row": 10**6}
    trainer = make_trainer(Troubled, placement="threads", num_collectors=num_collectors, env_workers=workers)
    told: list[str] = []
    trainer.faults.listen(lambda fault, line: told.append(line), lambda reason: None)
    # The end of its first episode is the last that is seen of lane 3.
    trainer.source.set_env_parameters({"hangs": [0.0, 0.0, 0.0, 1.0], "raises": [0.0, 0.0, 1.0, 0.0]})
    largest = 0.0

    def look(trainer: Trainer) -> None:
        nonlocal largest
        largest = max(largest, float(trainer.taken.rollout.array(f.OBS).max()))

    trainer.events.add(After("publish"), look)
    found = lanes_learned(trainer, 12)
    counts = np.bincount([lane for lane, _ in found], minlength=4)
    # An episode of 20 steps is two fragments of 8 and a part of a third.
    assert counts[3] <= 2
    assert min(counts[:2]) > 12 * 8 // 4, "the sound lanes did not make up for the others"
    assert told
    assert all("on lane 2" in line for line in told)
    assert largest <= 20.0, "something of a step that broke is in a fragment"
    trainer.close()


@pytest.mark.parametrize("placement", ["local", "threads", "processes", ONE_PROCESS], ids=str)
def test_every_group_has_its_turns_and_every_fragment_one_column(placement: Any) -> None:
    more = {"env_workers.num_workers": 4, "rollout.max_staleness": 50}
    trainer = make_trainer(Slow, placement=placement, num_collectors=4, **more)
    trainer.source.set_env_parameters({"seconds": 0.003})
    found = lanes_learned(trainer, 8)
    assert len(set(found)) == len(found) == 8 * 8
    for lane in range(4):
        numbers = sorted(number for one, number in found if one == lane)
        assert numbers == list(range(1, len(numbers) + 1)), "a fragment is missing"
        # Of lanes that are equally quick each would have 16.
        assert len(numbers) >= 4
    trainer.close()


def test_columns_that_threads_claim_are_their_own() -> None:
    block = FragmentBlock(SPEC, num_lanes=4000, num_steps=1, num_parts=8)

    def claim(size: int) -> list[int]:
        found: list[int] = []
        while len(mine := range(*block.claim(size).indices(4000))):
            found += mine
        return found

    with ThreadPoolExecutor(8) as pool:
        found = [column for some in pool.map(claim, (1, 2, 3, 1, 2, 3, 1, 5)) for column in some]
    assert sorted(found) == list(range(4000))
    assert block.room == 0


COUNTER = """
import mmap, sys
from quintain.services.processes.unnamed_memory import ProcessLock
descriptor, memory = int(sys.argv[1]), mmap.mmap(int(sys.argv[1]), 0)
lock = ProcessLock(descriptor)
for _ in range(20000):
    with lock:
        memory[:8] = (int.from_bytes(memory[:8], "little") + 1).to_bytes(8, "little")
"""


def test_a_lock_on_memory_excludes_processes() -> None:
    descriptor = unnamed_memory.allocate(64)
    command = [sys.executable, "-c", COUNTER, str(descriptor)]
    processes = [subprocess.Popen(command, pass_fds=[descriptor], env=ENVIRONMENT) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert int.from_bytes(mmap.mmap(descriptor, 0)[:8], "little") == 60000
    os.close(descriptor)


def fragment(number: int, ends: dict[int, float]) -> Fragment:
    """Returns a fragment of 3 steps whose episodes end at these steps with these observations."""
    block = FragmentBlock(SPEC, num_lanes=1, num_steps=3)
    block.begin(1, 0)
    block.arrays[f.FRAGMENT][...] = number
    block.arrays[f.OBS][...] = 100 * number
    for step in ends:
        block.arrays[f.DONE][step] = True
    endings = [Ending(step, {f.OBS: np.array([seen])}, torch.zeros(0)) for step, seen in ends.items()]
    fields = {name: rows[:, 0].copy() for name, rows in block.arrays.items()}
    return Fragment(fields, torch.zeros(0), endings)


def contents(block: FragmentBlock) -> list[tuple[int, dict[int, float]]]:
    """Returns the number of each fragment, with the last observations of its episodes."""
    columns = [block.fragment(column) for column in range(block.num_fragments)]
    return [
        (int(each.fields[f.FRAGMENT][0]), {end.step: float(end.obs[f.OBS][0]) for end in each.endings})
        for each in columns
    ]


GIVEN: list[tuple[int, dict[int, float]]] = [(1, {0: 1.5, 2: 2.5}), (2, {}), (3, {1: 3.5})]


@pytest.mark.parametrize("num_parts", [1, 2])
def test_a_block_that_is_half_full_is_saved_with_the_ends_in_each_column(num_parts: int) -> None:
    block = FragmentBlock(SPEC, num_lanes=4, num_steps=3, num_parts=2)
    block.begin(1, 0)
    block.put([fragment(*each) for each in GIVEN])
    other = FragmentBlock(SPEC, num_lanes=4, num_steps=3, num_parts=num_parts)
    other.load_state_dict(block.state_dict())
    other.put([fragment(4, {0: 4.5})])
    assert contents(other) == [*GIVEN, (4, {0: 4.5})]
    assert other.room == 0


@pytest.mark.parametrize("num_parts", [1, 2])
def test_pieces_go_to_the_room_that_there_is_and_the_rest_to_the_next_block(num_parts: int) -> None:
    sent = FragmentBlock(SPEC, num_lanes=4, num_steps=3, num_parts=num_parts)
    # One column is held by another process.
    sent.begin_after(1, 1)
    sent.put([fragment(*each) for each in GIVEN])
    piece = sent.columns(1)
    block = FragmentBlock(SPEC, num_lanes=4, num_steps=3, num_parts=2)
    block.begin(1, 0)
    block.put([fragment(7, {2: 7.5}), fragment(8, {})])
    assert block.append_columns(piece) == 2
    assert contents(block) == [(7, {2: 7.5}), (8, {}), *GIVEN[:2]]
    block.begin(2, 0)
    assert block.append_columns(piece, 2) == 1
    assert contents(block) == GIVEN[2:]
    sent.close()
    assert sent.claim(1) == slice(4, 4)
