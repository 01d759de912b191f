from __future__ import annotations

import errno
import json
import math
import os
import shutil
from pathlib import Path

import pytest

from quintain.errors import RunDirectoryError
from quintain.services.reporting.metrics_file import MAX_BUFFERED_ROWS, MetricsFile, read_rows
from tests.services.samples import never


def steps_in(path: Path) -> list[float]:
    return [row["step"] for row in read_rows(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch):
    """Gives a switch; while it is on, a write puts half of its bytes on the disk and then fails."""
    write = os.write
    switch = {"is_full": False}

    def write_half(fd: int, data: bytes) -> int:
        if not switch["is_full"]:
            return write(fd, data)
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, bytes(data)[: len(data) // 2])

    monkeypatch.setattr(os, "write", write_half)
    return switch


def test_one_line_per_row_seen_by_others_at_once(path: Path) -> None:
    metrics = MetricsFile(path, warn=never)
    metrics.append(256, {"train/loss": 0.5, "rollout/return": math.nan})
    assert json.loads(path.read_text()) == {"step": 256, "train/loss": 0.5, "rollout/return": None}
    (row,) = metrics.rows()
    assert row["train/loss"] == 0.5
    assert math.isnan(row["rollout/return"])


def test_rows_are_appended_by_the_next_process(path: Path) -> None:
    for step in (1, 2):
        metrics = MetricsFile(path, warn=never)
        metrics.append(step, {})
        metrics.close()
    assert steps_in(path) == [1, 2]


def test_a_torn_last_line_is_not_read_and_then_cut(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    assert steps_in(path) == [1]
    MetricsFile(path, warn=never).append(2, {})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_torn_only_line_longer_than_a_chunk_is_cut(path: Path) -> None:
    path.write_bytes(b"x" * 200_000)
    MetricsFile(path, warn=never)
    assert path.read_bytes() == b""


def test_a_line_that_is_no_row_is_named(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl:2: found b'nonsense'") as caught:
        steps_in(path)
    assert caught.value.code == "E0307"


@pytest.mark.parametrize(("step", "kept"), [(0, []), (1, [1]), (2, [1, 2, 2]), (3, [1, 2, 2]), (9, [1, 2, 2, 4])])
def test_truncate_after_drops_later_rows(path: Path, step: int, kept: list[int]) -> None:
    metrics = MetricsFile(path, warn=never)
    for written in (1, 2, 2, 4):
        metrics.append(written, {"x": 1.0})
    assert metrics.truncate_after(step) == 4 - len(kept)
    assert steps_in(path) == kept
    metrics.append(10, {})
    assert steps_in(path) == [*kept, 10]


def test_truncate_after_keeps_nothing_behind_the_cut(path: Path) -> None:
    metrics = MetricsFile(path, warn=never)
    for written in (1, 5, 2):
        metrics.append(written, {})
    assert metrics.truncate_after(3) == 2
    assert steps_in(path) == [1]


def test_truncate_after_drops_what_a_power_cut_left_at_the_end(path: Path) -> None:
    path.write_bytes(b'{"step": 1}\nodd\n{"step": 2}\n' + bytes(30) + b"\n" + bytes(10) + b"\n")
    assert MetricsFile(path, warn=never).truncate_after(2) == 0
    assert path.read_bytes() == b'{"step": 1}\nodd\n{"step": 2}\n'


def test_a_kill_at_any_call_of_truncate_after_leaves_whole_rows(tmp_path: Path, kill_at) -> None:
    start = tmp_path / "start"
    start.write_bytes(b'{"step": 1}\n{"step": 2}\n{"step": 3}\n{"st')
    for fatal_call in range(1, 100):
        path = tmp_path / "metrics.jsonl"
        shutil.copy(start, path)
        was_killed = kill_at(lambda p=path: MetricsFile(p, warn=never).truncate_after(2), fatal_call, "before")
        assert steps_in(path) in ([1, 2, 3], [1, 2])
        MetricsFile(path, warn=never).truncate_after(2)
        assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
        if not was_killed:
            break
    assert fatal_call > 3


def test_a_kill_in_an_append_tears_at_most_the_last_row(path: Path, kill_at) -> None:
    MetricsFile(path, warn=never).append(1, {"x": 1.0})
    metrics = MetricsFile(path, warn=never)
    assert kill_at(lambda: metrics.append(2, {"x": 1.0}), 1, "half")
    assert not path.read_bytes().endswith(b"\n")
    assert steps_in(path) == [1]


def test_a_full_disk_delays_rows_warns_once_and_never_raises(path: Path, full_disk: dict) -> None:
    warnings: list[str] = []
    metrics = MetricsFile(path, warn=warnings.append)
    metrics.append(1, {"loss": 0.25})
    full_disk["is_full"] = True
    for step in (2, 3, 4):
        metrics.append(step, {"loss": 0.25})
    metrics.sync()
    assert steps_in(path) == [1]
    assert path.read_bytes().endswith(b"\n"), "nothing of the refused rows may stay"
    assert metrics.num_waiting == 3
    assert len(warnings) == 1
    assert warnings[0].startswith("warning[W0810]: metrics sink paused: No space left on device")
    full_disk["is_full"] = False
    metrics.append(5, {"loss": 0.25})
    assert steps_in(path) == [1, 2, 3, 4, 5]
    full_disk["is_full"] = True
    metrics.append(6, {})
    assert len(warnings) == 2


def test_the_oldest_waiting_rows_are_dropped_and_counted(path: Path, full_disk: dict) -> None:
    metrics = MetricsFile(path, warn=lambda text: None)
    full_disk["is_full"] = True
    for step in range(MAX_BUFFERED_ROWS + 3):
        metrics.append(step, {})
    assert (metrics.num_waiting, metrics.num_dropped) == (MAX_BUFFERED_ROWS, 3)
    full_disk["is_full"] = False
    metrics.close()
    assert steps_in(path) == list(range(3, MAX_BUFFERED_ROWS + 3))
