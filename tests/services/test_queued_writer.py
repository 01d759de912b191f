"""A writer behind a queue: training waits for it never, loses nothing that it can take, and hears of it once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from quintain import Trainer
from quintain.errors import SettingsError
from quintain.services.reporting.queued_writer import QueuedWriter
from quintain.services.reporting.writers import RunHeader, RunSummary, WriterComplaint, WriterGroup

HEADER = RunHeader(
    version="1", algorithm="ppo", env="CartPole-v1", num_lanes=4, device="cpu", cores=1, seed=0, run_directory=None,
    budget_env_steps=256,
)  # fmt: skip
SUMMARY = RunSummary("finished", 1.0, 256)
SMALL: dict[str, Any] = {
    "num_lanes": 2, "num_steps": 16, "batch_size": 16, "num_epochs": 1, "writers": [],
    "experiment.behaviors.default.events": [],
}  # fmt: skip


class Told:
    """Remembers what it was told and by whom; `before` is called first, each time."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.told: list[Any] = []
        self.threads: set[str] = set()
        self.before = before

    def open(self, header: RunHeader) -> None:
        self._hear("open")

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._hear((step, dict(row)))

    def note(self, text: str) -> None:
        self._hear(text)

    def close(self, summary: RunSummary) -> None:
        self._hear("close")

    def _hear(self, what: Any) -> None:
        self.before()
        self.threads.add(threading.current_thread().name)
        self.told.append(what)


def test_everything_arrives_in_order_from_another_thread() -> None:
    inner = Told()
    writer = QueuedWriter(inner, "list")
    writer.open(HEADER)
    row = {"a": 1.0}
    writer.write(1, row)
    row["a"] = 2.0  # the caller's to change again
    writer.note("hello")
    writer.write(2, row)
    writer.close(SUMMARY)
    assert inner.told == ["open", (1, {"a": 1.0}), "hello", (2, {"a": 2.0}), "close"]
    assert threading.current_thread().name not in inner.threads


def test_it_can_be_opened_again_after_it_was_closed() -> None:
    inner = Told()
    writer = QueuedWriter(inner, "list")
    for step in (1, 2):
        writer.open(HEADER)
        writer.write(step, {})
        writer.close(SUMMARY)
    assert inner.told == ["open", (1, {}), "close", "open", (2, {}), "close"]


def test_the_oldest_rows_are_dropped_and_counted() -> None:
    gate, begun = threading.Event(), threading.Event()
    inner = Told()
    writer = QueuedWriter(inner, "slow", capacity=3, close_seconds=60.0)

    def wait() -> None:
        begun.set()
        assert gate.wait(timeout=60)

    writer.open(HEADER)
    writer.write(0, {})
    while not inner.told:  # the header has arrived
        pass
    inner.before = wait
    writer.write(1, {})
    assert begun.wait(timeout=60), "the thread has taken row 0 or 1 and waits"
    for step in range(2, 10):
        writer.write(step, {})
    gate.set()
    with pytest.raises(WriterComplaint, match=r"W0812.*slow was too slow and lacks \d+ rows") as raised:
        writer.close(SUMMARY)
    assert not raised.value.is_final
    steps = [told[0] for told in inner.told if isinstance(told, tuple)]
    assert steps[-3:] == [7, 8, 9], "the newest three"
    assert len(steps) <= 5


@pytest.mark.slow
def test_a_writer_that_hangs_does_not_hold_up_a_run() -> None:
    """The whole training happens while the writer is still busy with the first number of the first row."""
    gate, first = threading.Event(), []

    class Hangs:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            first.append(step)
            gate.wait(timeout=250)

    trainer = Trainer("ppo", "CartPole-v1", writer=Hangs(), **SMALL)
    summary = trainer.train(128)
    assert summary.env_steps == 128
    assert first == [32], "one number of one row, and four rows were written"
    gate.set()


def test_a_writer_that_fails_is_left_out_after_three_failures_with_one_warning(capsys) -> None:
    calls = []

    class Fails:
        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append(step)
            raise ConnectionError("no route to host")

    trainer = Trainer("ppo", "CartPole-v1", writer=Fails(), **SMALL)
    trainer.train(320)
    assert len(calls) == 3
    printed = capsys.readouterr().err
    assert printed.count("warning[W0811]") == 1
    assert "Fails disabled after 3 failures (the last: ConnectionError: no route to host)" in printed


def test_one_that_fails_does_not_disturb_another(capsys) -> None:
    def fail() -> None:
        raise OSError("broken")

    good, bad = Told(), QueuedWriter(Told(fail), "bad")
    group = WriterGroup([good, bad])
    group.open(HEADER)
    for step in range(4):
        group.write(step, {})
    group.close(SUMMARY)
    rows = [told for told in good.told if isinstance(told, tuple)]
    assert [step for step, _ in rows] == [0, 1, 2, 3]
    warnings = [told for told in good.told if isinstance(told, str) and "W0811" in told]
    assert len(warnings) == 1
    assert good.told[-1] == "close", "the console is closed last, so that it can show what is wrong with the others"


def test_a_summary_writer_gets_every_number_of_every_row() -> None:
    class Remembers:
        def __init__(self) -> None:
            self.points: list[tuple[str, int]] = []
            self.num_flushes = 0

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.points.append((name, step))

        def flush(self) -> None:
            self.num_flushes += 1

    mine = Remembers()
    Trainer("ppo", "CartPole-v1", writer=mine, **SMALL).train(64)
    assert {step for _, step in mine.points} == {32, 64}
    assert ("train/policy_loss", 64) in mine.points
    assert len(mine.points) == len(set(mine.points))
    assert mine.num_flushes == 1


def test_a_writer_of_ours_is_taken_as_it_is() -> None:
    mine = Told()
    Trainer("ppo", "CartPole-v1", writer=mine, **SMALL).train(32)
    # What is worth a note about the policy is known before the run is opened, and follows its header.
    [header, *notes, row, end] = mine.told
    assert (header, row[0], end) == ("open", 32, "close")
    assert any(note.startswith("compiled path") for note in notes)


def test_anything_else_is_refused() -> None:
    with pytest.raises(SettingsError, match="writer slot got a int; pass a SummaryWriter"):
        Trainer("ppo", "CartPole-v1", writer=3)
