"""A start that takes long is told of now and then, and a quick one is not."""

from __future__ import annotations

import threading
from io import StringIO
from pathlib import Path

import pytest

from quintain.errors import ServiceError
from quintain.runs import launch, slow_start
from quintain.runs.ranks.on_ray import new_run, train_on_ray
from quintain.settings.tree import RunFile


def test_a_slow_start_is_told_of_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "QUIET_SECONDS", 0.001)
    told: list[str] = []
    is_told = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            is_told.set()

    with slow_start.telling_while_slow(tell, lambda: "busy"):
        assert is_told.wait(60.0)
    number = len(told)
    assert set(told) == {"note: busy, 0 s so far"}
    assert not any(thread.name == "slow start" for thread in threading.enumerate())
    assert len(told) == number


def test_it_ends_when_there_is_nothing_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "QUIET_SECONDS", 0.001)
    told: list[str] = []
    what = iter(["first", "second", ""])
    with slow_start.telling_while_slow(told.append, lambda: next(what)):
        for thread in threading.enumerate():
            if thread.name == "slow start":
                thread.join(60.0)
    assert told == ["note: first, 0 s so far", "note: second, 0 s so far"]


def test_a_quick_or_failing_start_is_not() -> None:
    told: list[str] = []
    with pytest.raises(ZeroDivisionError), slow_start.telling_while_slow(told.append, lambda: "busy"):
        raise ZeroDivisionError
    assert told == []
    assert not any(thread.name == "slow start" for thread in threading.enumerate())


def test_a_run_tells_of_it_until_its_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "QUIET_SECONDS", 0.001)
    settings = ("num_lanes=2", "num_steps=8", "batch_size=8", "num_epochs=1", "events=[]", "total_timesteps=32")
    run_file = RunFile.from_names("ppo", "CartPole-v1", *settings)
    begun, resumed = StringIO(), StringIO()
    launched = launch.start(run_file, runs_dir=tmp_path, run_id="a", stream=begun)
    assert "note: starting: environments, policy and processes are being made, 0 s so far" in begun.getvalue()
    is_told = threading.Event()

    advance_really = launched.trainer.advance

    def advance() -> bool:
        # A first update that takes as long as its note.
        assert is_told.wait(60.0)
        return advance_really()

    monkeypatch.setattr(launched.trainer, "advance", advance)
    note = launched.run.writer.note

    def tell(text: str) -> None:
        note(text)
        if "first update" in text:
            is_told.set()

    monkeypatch.setattr(launched.run.writer, "note", tell)
    launched.trainer.train()
    launched.trainer.close()
    launched.run.close()
    assert "note: in the first update: collecting or learning, 0 s so far" in begun.getvalue()
    launched = launch.resume(tmp_path, "a", stream=resumed)
    launched.trainer.close()
    launched.run.close()
    assert "note: starting: environments, policy and processes are being made, 0 s so far" in resumed.getvalue()


def test_ranks_under_ray_train_are_told_of_before_the_cluster_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def join(*words: object, **others: object) -> None:
        told.append(stream.getvalue())
        raise ServiceError("there is none", code="E0546")

    monkeypatch.setattr("quintain.placements.ray.cluster.Cluster.join", join)
    places = ("placement=ray", "placement.num_ranks=2", "max_staleness=1")
    run_file = RunFile.from_names("ppo", "CartPole-v1", "num_lanes=2", *places)
    stream = StringIO()
    with pytest.raises(ServiceError, match="there is none"):
        train_on_ray(new_run(run_file, runs_dir=tmp_path, run_id="a"), stream=stream)
    assert told == ["note: Ray Train starts 2 ranks, which can take a minute\n"]
    stream = StringIO()
    with pytest.raises(ServiceError, match="there is none"):
        train_on_ray(new_run(run_file, runs_dir=tmp_path, run_id="a"), stream=stream, quiet=True)
    assert told[1:] == [""]
