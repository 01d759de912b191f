"""A start that takes long is told of now and then, and a quick one is not."""

from __future__ import annotations

import threading
from io import StringIO
from pathlib import Path

import pytest

from quintain.runs import launch
from quintain.services.reporting import slow_start
from quintain.settings.tree import RunFile


def test_a_slow_start_is_told_of_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "QUIET_SECONDS", 0.001)
    told: list[str] = []
    is_told = threading.Event()

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            is_told.set()

    with slow_start.telling_of_slow_start(tell):
        assert is_told.wait(60.0)
    number = len(told)
    assert all(text.startswith("note: still starting after 0 s: environments, policy") for text in told[:3])
    assert not any(thread.name == "slow start" for thread in threading.enumerate())
    assert len(told) == number


def test_a_quick_or_failing_start_is_not() -> None:
    told: list[str] = []
    with pytest.raises(ZeroDivisionError), slow_start.telling_of_slow_start(told.append):
        raise ZeroDivisionError
    assert told == []
    assert not any(thread.name == "slow start" for thread in threading.enumerate())


def test_a_run_tells_of_it_when_it_begins_and_when_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_start, "QUIET_SECONDS", 0.001)
    settings = ("num_lanes=2", "num_steps=8", "batch_size=8", "num_epochs=1", "events=[]", "total_timesteps=16")
    run_file = RunFile.from_names("ppo", "CartPole-v1", *settings)
    begun, resumed = StringIO(), StringIO()
    launched = launch.start(run_file, runs_dir=tmp_path, run_id="a", stream=begun)
    launched.trainer.close()
    launched.run.close()
    launched = launch.resume(tmp_path, "a", stream=resumed)
    launched.trainer.close()
    launched.run.close()
    for stream in (begun, resumed):
        assert "still starting after" in stream.getvalue()
