"""Rows hold the right means, windows the right episodes, and both continue exactly after a resume."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from quintain.errors import CheckpointIncompatible
from quintain.services.reporting.stats import EpisodeWindow, StatsReporter
from quintain.services.reporting.writers import RunHeader, RunSummary, WriterGroup

HEADER = RunHeader("0.1.0", "ppo", "CartPole-v1", 8, "cpu", 2, 0, None, 1000)


class FakeClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class RecordingWriter:
    """Remembers what it was given; raises as long as it is told to."""

    def __init__(self, is_broken: bool = False) -> None:
        self.is_broken = is_broken
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.notes: list[str] = []
        self.num_calls = 0

    def open(self, header: RunHeader) -> None:
        self._call()

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._call()
        self.rows.append((step, dict(row)))

    def note(self, text: str) -> None:
        self._call()
        self.notes.append(text)

    def close(self, summary: RunSummary) -> None:
        self._call()

    def _call(self) -> None:
        self.num_calls += 1
        if self.is_broken:
            raise ConnectionError("no\x1broute")


def without_time(row: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if not name.startswith("time/")}


def test_added_values_are_averaged_and_set_values_replaced() -> None:
    writer = RecordingWriter()
    stats = StatsReporter(writer)
    stats.add_all({"train/entropy": 1.0, "train/value_loss": 8.0})
    stats.add_stat("train/entropy", np.float32(2.0))
    stats.add_stat("train/entropy", 6.0)
    stats.set_stat("eval/mean_reward", 10.0)
    stats.set_stat("eval/mean_reward", 20.0)
    returned = stats.write_stats(64)
    # (1 + 2 + 6) / 3 = 3
    expected = {"eval/mean_reward": 20.0, "train/entropy": 3.0, "train/value_loss": 8.0}
    assert without_time(returned) == expected
    assert writer.rows == [(64, returned)]


def test_an_interval_starts_empty() -> None:
    stats = StatsReporter(RecordingWriter())
    stats.add_stat("a", 1.0)
    stats.set_stat("b", 1.0)
    stats.write_stats(1)
    assert without_time(stats.write_stats(2)) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_out(value: float) -> None:
    stats = StatsReporter(RecordingWriter())
    stats.add_stat("mixed", 4.0)
    stats.add_stat("mixed", value)
    stats.add_stat("added", value)
    stats.set_stat("set", 1.0)
    stats.set_stat("set", value)
    assert without_time(stats.write_stats(1)) == {"mixed": 4.0}


def test_time_shares_and_rate_are_of_this_interval() -> None:
    clock = FakeClock()
    stats = StatsReporter(RecordingWriter(), start_step=1000, clock=clock)
    with stats.timer("env"):
        clock.seconds += 4.0
    stats.add_time("act", 1.0)
    with stats.timer("update"):
        clock.seconds += 3.0
    with stats.timer("estimate"):
        clock.seconds += 1.0
    clock.seconds += 2.0
    row = stats.write_stats(1500)
    # 10 seconds: 4 env, 1 act (inside), 3 + 1 learning, 1 unaccounted; 500 steps / 10 s.
    assert row == {
        "time/total_seconds": 10.0,
        "time/fps": 50.0,
        "time/env_fraction": 0.4,
        "time/act_fraction": 0.1,
        "time/learn_fraction": 0.4,
        "time/other_fraction": pytest.approx(0.1),
    }
    clock.seconds += 5.0
    second = stats.write_stats(1600)
    assert second["time/fps"] == 20.0
    assert second["time/env_fraction"] == 0.0
    assert second["time/total_seconds"] == 15.0


def test_a_row_without_elapsed_time_has_no_rate() -> None:
    stats = StatsReporter(RecordingWriter(), clock=FakeClock())
    assert stats.write_stats(10) == {"time/total_seconds": 0.0}


def test_a_resumed_reporter_continues_its_interval_and_its_total_time() -> None:
    clock = FakeClock()
    first = StatsReporter(RecordingWriter(), clock=clock)
    first.write_stats(100)
    first.add_stat("train/entropy", 1.0)
    first.set_stat("eval/mean_reward", 7.0)
    clock.seconds += 30.0
    state = first.state_dict()

    clock.seconds += 10_000.0  # the time between the two processes does not count
    second = StatsReporter(RecordingWriter(), clock=clock)
    second.load_state_dict(state)
    second.add_stat("train/entropy", 2.0)
    clock.seconds += 2.0
    row = second.write_stats(150)
    assert without_time(row) == {"eval/mean_reward": 7.0, "train/entropy": 1.5}
    assert row["time/total_seconds"] == 32.0
    assert row["time/fps"] == 25.0


def test_reporter_state_is_a_copy() -> None:
    stats = StatsReporter(RecordingWriter())
    stats.add_stat("a", 1.0)
    state = stats.state_dict()
    stats.add_stat("a", 1.0)
    assert state["sums"] == {"a": 1.0}
    assert state["counts"] == {"a": 1}


def test_an_empty_window_has_no_mean() -> None:
    window = EpisodeWindow()
    assert len(window) == 0
    assert all(math.isnan(value) for value in window.stats().values())


def test_the_window_keeps_the_newest_episodes() -> None:
    window = EpisodeWindow(size=3)
    window.extend(np.array([1.0, 2.0]), np.array([10, 20]))
    assert (len(window), window.mean_return, window.mean_length) == (2, 1.5, 15.0)
    window.extend([3.0, 4.0], [30, 40])
    # 2, 3, 4 are left: mean 3, variance 2/3; lengths 20, 30, 40.
    assert len(window) == 3
    assert window.mean_return == 3.0
    assert window.std_return == pytest.approx(math.sqrt(2 / 3))
    assert window.mean_length == 30.0
    assert set(window.stats()) == {"rollout/ep_rew_mean", "rollout/ep_rew_std", "rollout/ep_len_mean"}


def test_more_episodes_than_the_window_holds() -> None:
    window = EpisodeWindow(size=3)
    window.extend([9.0], [9])
    window.extend([1.0, 2.0, 3.0, 4.0, 5.0], [1, 2, 3, 4, 5])
    assert (window.mean_return, window.mean_length) == (4.0, 4.0)
    window.extend([10.0], [10])  # replaces 3, the oldest
    assert window.mean_return == pytest.approx(19 / 3)


def test_no_episodes_change_nothing() -> None:
    window = EpisodeWindow(size=3)
    window.extend([1.0], [1])
    before = window.state_dict()
    window.extend(np.zeros(0), np.zeros(0, dtype=np.int64))
    assert window.state_dict()["cursor"] == before["cursor"]
    assert len(window) == 1


def test_returns_without_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="2 returns came with 1 lengths"):
        EpisodeWindow().extend([1.0, 2.0], [1])


def test_a_resumed_window_replaces_the_same_episodes() -> None:
    first, second = EpisodeWindow(size=4), EpisodeWindow(size=4)
    first.extend([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1, 2, 3, 4, 5, 6])
    state = first.state_dict()
    first.extend([100.0], [100])
    second.load_state_dict(state)
    assert second.mean_return == 4.5
    second.extend([100.0], [100])
    # 3 was the oldest: 4 + 5 + 6 + 100 = 115.
    assert first.mean_return == second.mean_return == 115 / 4
    np.testing.assert_array_equal(first.state_dict()["returns"], second.state_dict()["returns"])


def test_a_window_of_another_size_is_refused() -> None:
    with pytest.raises(CheckpointIncompatible, match="holds 4 episodes, this run's holds 3"):
        EpisodeWindow(size=3).load_state_dict(EpisodeWindow(size=4).state_dict())


def test_a_failing_writer_is_disabled_with_one_warning_and_the_others_go_on() -> None:
    good, bad = RecordingWriter(), RecordingWriter(is_broken=True)
    group = WriterGroup([bad, good])
    group.open(replace(HEADER, run_directory="runs/a1"))
    for step in range(5):
        group.write(step, {"a": 1.0})
    assert [step for step, _ in good.rows] == [0, 1, 2, 3, 4]
    assert bad.num_calls == 3
    assert len(good.notes) == 1
    assert good.notes[0].startswith("warning[W0811]: RecordingWriter disabled after 3 failures")
    assert "ConnectionError" in good.notes[0]
    assert good.notes[0].endswith("; metrics stay in metrics.jsonl")


def test_a_run_without_a_directory_has_no_metrics_file_to_name() -> None:
    good = RecordingWriter()
    group = WriterGroup([RecordingWriter(is_broken=True), good])
    group.open(replace(HEADER, run_directory=None))
    for step in range(5):
        group.write(step, {"a": 1.0})
    [note] = good.notes
    assert note.startswith("warning[W0811]")
    assert "metrics.jsonl" not in note


def test_notes_of_a_run_that_trains_later_follow_its_header_and_warnings_do_not_wait() -> None:
    writer = RecordingWriter()
    group = WriterGroup([writer])
    group.wait_for_header()
    group.note("compiled path: acting")
    group.note("warning[W0402]: not exact")
    assert writer.notes == ["warning[W0402]: not exact"]
    group.open(HEADER)
    assert writer.notes == ["warning[W0402]: not exact", "compiled path: acting"]
    group.note("later")
    group.open(HEADER)
    assert writer.notes == ["warning[W0402]: not exact", "compiled path: acting", "later"]


def test_two_failures_are_forgiven() -> None:
    writer = RecordingWriter(is_broken=True)
    group = WriterGroup([writer])
    group.write(0, {})
    group.write(1, {})
    writer.is_broken = False
    group.write(2, {"a": 1.0})
    assert writer.rows == [(2, {"a": 1.0})]


def test_the_last_writer_fails_in_public(capsys: pytest.CaptureFixture[str]) -> None:
    group = WriterGroup([RecordingWriter(is_broken=True)])
    for step in range(10):
        group.write(step, {})
    printed = capsys.readouterr().err
    assert printed.count("W0811") == 1
    assert "\x1b" not in printed
    assert r"no\x1broute" in printed
