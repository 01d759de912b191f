"""A disk that is full, or cannot be written, costs no committed checkpoint and never the explanation."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import app
from quintain.services.files import atomic
from tests.resume.outcome import assert_every_checkpoint_is_sound, digest_of, rows_of

WORDS = (
    "train",
    "ppo",
    "CartPole-v1",
    "num_lanes=2",
    "num_steps=16",
    "batch_size=16",
    "num_epochs=1",
    "budget.env_steps=320",
    "checkpoint.every_updates=1",
    "checkpoint.keep=2",
    "experiment.behaviors.default.events=[]",
    "--quiet",
)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("alone")
    assert app.main([*WORDS, "--run-id", "alone", "--runs-dir", str(folder)]) == 0
    return digest_of(folder / "alone"), rows_of(folder / "alone")


class Disk:
    """Refuses to write from a chosen call on, for a chosen number of calls, as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, first: int, num_refused: int, where: str) -> None:
        self.calls, self.first, self.num_refused, self.where = 0, first, num_refused, where
        original = os.write

        def write(fd: int, data: Any) -> int:
            if self.where in os.readlink(f"/proc/self/fd/{fd}"):
                self.calls += 1
                if self.first <= self.calls < self.first + self.num_refused:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(fd, data)

        monkeypatch.setattr(os, "write", write)


def test_a_disk_that_is_full_for_a_while_costs_nothing(
    reference: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Three files make a checkpoint. The fifth's first write is refused, and again after the reserve was released.
    disk = Disk(monkeypatch, first=13, num_refused=2, where="/checkpoints/")
    assert app.main([*WORDS[:-1], "--run-id", "a"]) == 0
    assert disk.calls > 15
    assert "warning[W0801]" in capsys.readouterr().out
    assert (digest_of(Path("runs/a")), rows_of(Path("runs/a"))) == reference
    events = [json.loads(line)["kind"] for line in Path("runs/a/events.jsonl").read_text().splitlines()]
    assert "checkpoint_failed" in events


def test_a_disk_that_stays_full_stops_the_run(
    reference: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        Disk(patch, first=13, num_refused=10**9, where="/checkpoints/")
        assert app.main([*WORDS, "--run-id", "b"]) == 8
    printed = capsys.readouterr().err
    assert printed.startswith("error[E0801]: cannot write the checkpoint of step ")
    assert "Traceback" not in printed
    run = Path("runs/b")
    assert_every_checkpoint_is_sound(run)
    status = json.loads((run / "status.json").read_text())
    assert (status["state"], status["exit_code"], status["resumable"]) == ("failed", 8, True)
    # The commits at 0, 32, 64 and 96 fit; those at 128, 160 and 192 do not, and three are enough.
    assert (status["checkpoint"], status["step"]) == ("000004-step-96", 192)
    assert app.main(["resume", "b", "--quiet"]) == 0
    assert (digest_of(run), rows_of(run)) == reference


@pytest.mark.parametrize("where", ["metrics.jsonl", "events.jsonl"])
def test_a_disk_that_refuses_only_records_does_not_stop_training(
    reference: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    Disk(monkeypatch, first=3, num_refused=4, where=where)
    assert app.main([*WORDS, "--run-id", "c"]) == 0
    assert (digest_of(Path("runs/c")), rows_of(Path("runs/c"))) == reference


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    yield from _mounted(tmp_path / "small", "size=1m")


def _mounted(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting needs rights that this process does not have")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_small_disk_that_fills_up(
    reference: tuple[str, list[dict[str, Any]]], small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs-dir", str(small_disk)]
    filler = small_disk / "filler"

    def fill() -> None:
        with open(filler, "wb") as file:
            file.write(b"x" * max(0, atomic.free_bytes(small_disk) - 8192))

    assert app.main([*WORDS, "budget.env_steps=64", "--run-id", "d", *runs]) == 0
    run = small_disk / "d"
    fill()
    capsys.readouterr()
    exit_code = app.main(["resume", "d", "budget.env_steps=320", "--quiet", *runs])
    printed = capsys.readouterr().err
    assert exit_code == 8, printed
    assert printed.startswith("error[E0801]: ")
    assert "No space left on device" in printed
    assert "Traceback" not in printed
    assert_every_checkpoint_is_sound(run)
    filler.unlink()
    assert app.main(["resume", "d", "budget.env_steps=320", "--quiet", *runs]) == 0
    assert [row["step"] for row in rows_of(run)] == list(range(32, 321, 32))


def test_a_disk_that_is_full_from_the_start(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with open(small_disk / "filler", "wb") as file:
        file.write(b"x" * atomic.free_bytes(small_disk))
    assert app.main([*WORDS, "--run-id", "e", "--runs-dir", str(small_disk)]) == 8
    assert capsys.readouterr().err.startswith("error[E0801]: ")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    yield from _mounted(tmp_path / "fixed", "ro,size=1m")


def test_a_read_only_file_system(read_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main([*WORDS, "--run-id", "f", "--runs-dir", str(read_only)]) == 3
    printed = capsys.readouterr().err
    assert printed.startswith("error[E0305]: run directory is not writable: ")
    assert "Read-only file system" in printed
    assert list(read_only.iterdir()) == []


def test_a_run_that_became_read_only(
    reference: tuple[str, list[dict[str, Any]]], small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = ["--runs-dir", str(small_disk)]
    assert app.main([*WORDS, "budget.env_steps=64", "--run-id", "g", *runs]) == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    capsys.readouterr()
    assert app.main(["resume", "g", "budget.env_steps=320", "--quiet", *runs]) == 3
    assert capsys.readouterr().err.startswith("error[E0305]: ")
    # Reading needs no writing.
    assert app.main(["checkpoints", "verify", "g", *runs]) == 0
    assert app.main(["eval", "g", "--episodes", "1", *runs]) == 0


def test_a_file_where_the_runs_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").write_text("not a folder")
    assert app.main([*WORDS, "--run-id", "h"]) == 3
    assert capsys.readouterr().err.startswith("error[E0305]: ")
    assert (tmp_path / "runs").read_text() == "not a folder"
