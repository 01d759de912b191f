"""Weights that collectors take between two acts: never half of a publication, never with the label of another."""

from __future__ import annotations

import mmap
import multiprocessing
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from quintain import Trainer
from quintain.data import fields as f
from quintain.placements import snapshots
from quintain.placements.shared_blocks import _Carver
from quintain.placements.snapshots import Label, PublishedWeights, WeightReader

NUM_LOADS = 10_000
SIZES = (7, 100, 3, 2000)


class Numbered(torch.nn.Module):
    """A policy whose every weight is its version."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.zeros(size) for size in SIZES])

    def fill(self, version: int) -> None:
        with torch.no_grad():
            for weight in self.weights:
                weight.fill_(float(version))

    def found(self) -> list[float]:
        """Returns all different values of its weights."""
        return np.unique(np.concatenate([weight.detach().numpy() for weight in self.weights])).tolist()


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture(autouse=True)
def quick_switches() -> Iterator[None]:
    """Lets threads take turns within a copy."""
    before, num_threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(before)
    torch.set_num_threads(num_threads)


def test_arrays_of_another_process_are_published_where_they_are_and_given_back() -> None:
    policy: Any = Numbered()
    published = PublishedWeights(policy, zeros)
    reader = WeightReader(published, policy)
    versions = []
    for version in (1, 2, 3):
        arrays = {
            name: np.full(tuple(each.shape), float(version), np.float32) for name, each in policy.state_dict().items()
        }
        for array in arrays.values():
            array.flags.writeable = False
        published.publish_arrays((version, 7), arrays)
        assert all(np.shares_memory(published.slots[0][name].numpy(), array) for name, array in arrays.items())
        assert all(np.shares_memory(published.slots[1][name].numpy(), array) for name, array in arrays.items())
        versions.append([weakref.ref(array) for array in arrays.values()])
        del arrays, array
        assert reader.take() == Label(version, 7)
        assert policy.found() == [float(version)]
    assert [[ref() is None for ref in refs] for refs in versions] == [[True] * 4, [True] * 4, [False] * 4]


def publish_all(published: PublishedWeights, is_over: Any) -> None:
    """Publishes version after version, in session version % 5, until all have read enough."""
    learner, version = Numbered(), 0
    while not is_over.is_set():
        version += 1
        learner.fill(version)
        published.publish(Label(version, version % 5), learner)  # type: ignore[arg-type]
        # Now and then so many come at once that a reader is overtaken, and not always.
        if version % 4 == 0:
            time.sleep(2e-4)


def wrong_loads(published: PublishedWeights, num_loads: int) -> list[tuple[Label, list[float]]]:
    """Loads so many different publications; returns those whose weights are not all of the label's version."""
    policy, wrong, seen = Numbered(), [], 0
    reader = WeightReader(published, policy)  # type: ignore[arg-type]
    before = reader.label
    while seen < num_loads:
        label = reader.take()
        if label == before:
            continue
        assert label.version > before.version, "weights went back"
        seen, before = seen + 1, label
        if policy.found() != [float(label.version)] or label.session != label.version % 5:
            wrong.append((label, policy.found()))
    return wrong


@pytest.mark.slow
def test_ten_thousand_loads_in_threads_beside_a_writer_never_show_a_wrong_label() -> None:
    published, is_over = PublishedWeights(Numbered(), zeros), threading.Event()  # type: ignore[arg-type]
    writer = threading.Thread(target=publish_all, args=(published, is_over))
    wrong: list[Any] = []
    readers = [threading.Thread(target=lambda: wrong.extend(wrong_loads(published, NUM_LOADS // 4))) for _ in range(4)]
    for thread in (writer, *readers):
        thread.start()
    for thread in readers:
        thread.join()
    is_over.set()
    writer.join()
    assert wrong == []


def in_memory(memory: mmap.mmap) -> PublishedWeights:
    return PublishedWeights(Numbered(), _Carver(memory))  # type: ignore[arg-type]


def test_ten_thousand_loads_beside_a_process_that_writes_never_show_a_wrong_label() -> None:
    memory = mmap.mmap(-1, 1 << 20)
    forked = multiprocessing.get_context("fork")
    is_over = forked.Event()
    writer = forked.Process(target=lambda: publish_all(in_memory(memory), is_over))
    writer.start()
    try:
        assert wrong_loads(in_memory(memory), NUM_LOADS) == []
    finally:
        is_over.set()
        writer.join()


def test_a_reader_that_does_not_look_again_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publication that comes while a slot is copied is noticed by its number alone."""
    published, learner, policy = PublishedWeights(Numbered(), zeros), Numbered(), Numbered()  # type: ignore[arg-type]
    learner.fill(1)
    published.publish(Label(1, 1), learner)  # type: ignore[arg-type]
    load, versions = snapshots.load_snapshot, iter([2, 3, 4])

    def overtaken(into: Any, snapshot: Any) -> None:
        for version in versions:
            # The second of them is written to the slot that is being read.
            learner.fill(version)
            published.publish(Label(version, 1), learner)  # type: ignore[arg-type]
        load(into, snapshot)

    monkeypatch.setattr(snapshots, "load_snapshot", overtaken)
    reader = WeightReader(published, policy)  # type: ignore[arg-type]
    assert reader.take() == (4, 1)
    assert policy.found() == [4.0]
    assert reader.number == 4


@pytest.mark.parametrize("placement", ["local", "threads", "processes"])
def test_collectors_act_with_the_newest_version(placement: str) -> None:
    """While the learner waits for its first batch of a version, no step is of an older one."""
    rollout = {"type": "fragments", "num_steps": 4, "num_fragments": 8, "max_staleness": int(placement != "local")}
    trainer = Trainer(
        "ppo", "CartPole-v1", rollout=rollout, num_lanes=4, batch_size=16, num_epochs=1, writers=[], events=[],
        placement=placement,
    )  # fmt: skip
    for _ in range(3):
        trainer.advance()
    assert trainer._stage_collect()
    trainer.batch.rollout.arrays[f.POLICY_VERSION][...] = -1
    # Several versions are published while the collector has a block to fill or waits for one.
    for version in range(10, 15):
        trainer.source.publish("default", version, trainer.policy)
    trainer.progress.version = 14
    seen: list[np.ndarray] = []
    for _ in range(4):
        trainer.learner.mark_consumed()
        trainer.learner.begin_cycle()
        assert trainer._collect_rollout()
        if trainer.learner.store.admit(14):
            seen.append(trainer.learner.store.take().rollout.array(f.POLICY_VERSION)[:-1].copy())
        trainer.source.drain_metrics("default")
    versions = np.concatenate(seen, axis=1)
    # Blocks that were ordered with the version before are filled with the newest all the same.
    assert set(versions[:, -8:].ravel().tolist()) == {14}
    assert (np.diff(versions, axis=0) >= 0).all(), "a lane went back to older weights"
    trainer.close()
