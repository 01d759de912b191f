"""Links, pipes and sparse files inside a run: nothing is read, written, waited for or removed through them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quintain.behaviors.model_checkpoints import ModelCheckpointManager
from quintain.errors import CheckpointError, RunDirectoryError
from quintain.services import plain_files
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from quintain.services.checkpoints.disk_reserve import DiskReserve
from quintain.services.checkpoints.manager import CheckpointManager
from quintain.services.files.line_file import MAX_LINE_BYTES, LineFile, read_lines
from quintain.services.files.run_directory import RunDirectory, Status
from quintain.services.reporting.event_log import EventLog
from tests.services.samples import state_at


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    made = RunDirectory.create(tmp_path / "runs", "a1", config="seed: 1\n")
    CheckpointManager(made.checkpoints, keep=2).commit(state_at(1), step=1, about={})
    made.write_status(Status("stopped", 1))
    return made


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder that is none of the run's, with what a sweep would remove."""
    folder = tmp_path / "outside"
    (folder / ".tmp-precious").mkdir(parents=True)
    (folder / "file").write_text("precious\n")
    return folder


@pytest.mark.parametrize("name", ["checkpoints", "export", "videos", "status.json", "config.yaml", "Ball"])
def test_a_run_with_a_link_is_not_opened(run: RunDirectory, outside: Path, name: str) -> None:
    if (run.path / name).exists():
        (run.path / name).rename(outside / name)
    (run.path / name).symlink_to(outside / name)
    with pytest.raises(RunDirectoryError, match=f"{name}: not a file or folder of its own") as caught:
        RunDirectory.open_existing(run.path)
    assert (caught.value.code, caught.value.exit_code) == ("E0306", 3)


def test_a_pipe_is_not_waited_for(run: RunDirectory) -> None:
    (run.path / "status.json").unlink()
    os.mkfifo(run.path / "status.json")
    assert run.read_status() is None
    with pytest.raises(RunDirectoryError, match=r"status\.json"):
        RunDirectory.open_existing(run.path)


def test_a_run_may_itself_be_reached_through_a_link(run: RunDirectory, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(run.path)
    assert RunDirectory.open_existing(tmp_path / "shortcut").read_status() is not None


def test_nothing_is_swept_or_listed_behind_a_link(tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "checkpoints").symlink_to(outside)
    manager = CheckpointManager(run / "checkpoints", keep=2)
    for use in (manager.sweep, manager.paths, lambda: manager.commit(state_at(1), step=1, about={})):
        with pytest.raises(RunDirectoryError, match="not a folder"):
            use()
    (run / "videos").symlink_to(outside)
    with RunDirectory(run).lock():
        assert sorted(os.listdir(outside)) == [".tmp-precious", "file"]


@pytest.mark.parametrize("name", ["export", "crash", "workers"])
def test_nothing_is_written_behind_a_link(run: RunDirectory, outside: Path, name: str) -> None:
    (run.path / name).symlink_to(outside)
    with pytest.raises(RunDirectoryError, match=f"{name}: not a folder") as caught:
        run.write_crash("Traceback") if name == "crash" else run.folder(name)
    assert caught.value.code == "E0306"
    assert sorted(os.listdir(outside)) == [".tmp-precious", "file"]


def test_lines_are_not_cut_in_a_file_that_has_another_name(tmp_path: Path, outside: Path) -> None:
    (outside / "file").write_text("precious, and without an end")
    os.link(outside / "file", tmp_path / "metrics.jsonl")
    with pytest.raises(RunDirectoryError, match="a run is never read or written through links"):
        LineFile(tmp_path / "metrics.jsonl")
    assert (outside / "file").read_text() == "precious, and without an end"


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_lines_are_read_from_regular_files_only(tmp_path: Path, outside: Path, kind: str) -> None:
    path = tmp_path / "events.jsonl"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(outside / "file")
    with pytest.raises(RunDirectoryError, match="a run is never read or written through links"):
        EventLog(path)
    with pytest.raises(RunDirectoryError, match="a run is never read or written through links"):
        list(read_lines(path))


def test_a_sparse_file_of_lines_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"step": 1}\n')
        file.truncate(64 << 30)
    for use in (LineFile, lambda path: list(read_lines(path))):
        with pytest.raises(RunDirectoryError, match=f"more than {MAX_LINE_BYTES:_} bytes") as caught:
            use(path)
        assert caught.value.code == "E0307"
    assert path.stat().st_size == 64 << 30


def test_a_sparse_small_file_is_refused_by_its_size(run: RunDirectory) -> None:
    with open(run.path / "status.json", "r+b") as file:
        file.truncate(64 << 30)
    assert run.read_status() is None
    with pytest.raises(OSError, match="expected at most 10"):
        plain_files.read(run.path / "status.json", 10)


@pytest.mark.parametrize("is_described", [False, True])
def test_sparse_tensors_are_refused_before_they_are_read(run: RunDirectory, is_described: bool) -> None:
    """Once as a hole, once with a header that describes 64 GB, and a manifest that fits both."""
    (path,) = CheckpointCatalog(run.checkpoints).paths()
    size = 1 << 43
    header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with open(path / "state.safetensors", "wb") as file:
        if is_described:
            file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
    content = json.loads((path / "manifest.json").read_text())
    content["files"]["state.safetensors"]["size"] = 8 + len(header) + size
    reseal(path, content)
    with pytest.raises(CheckpointError, match=r"state\.safetensors") as caught:
        load(path)
    assert caught.value.code == ("E0409" if is_described else "E0401")


@pytest.mark.parametrize(("count", "size", "code"), [(1, 2 << 30, "E0401"), (2000, 1 << 30, "E0409")])
def test_sparse_bulk_arrays_are_refused_before_they_are_read(
    run: RunDirectory, count: int, size: int, code: str
) -> None:
    """One that is larger than any, and many that no memory could hold together."""
    (path,) = CheckpointCatalog(run.checkpoints).paths()
    content = json.loads((path / "manifest.json").read_text())
    for number in range(count):
        name = f"{number:064x}"
        with open(path / f"{name}.bulk", "wb") as file:
            file.truncate(size)
        content["files"][f"{name}.bulk"] = {"size": size, "sha256": name}
    reseal(path, content)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert caught.value.code == code
    assert "sha256 differs" not in str(caught.value)


def reseal(path: Path, content: dict[str, object]) -> None:
    import hashlib

    from quintain.services.checkpoints.files import _dump

    unsealed = {name: value for name, value in content.items() if name not in ("sha256", "signature")}
    sealed = {**unsealed, "sha256": hashlib.sha256(_dump(unsealed)).hexdigest()}
    (path / "manifest.json").write_bytes(_dump(sealed))


def test_the_reserve_is_not_made_of_another_file(tmp_path: Path, outside: Path) -> None:
    reserve = DiskReserve(tmp_path)
    os.link(outside / "file", reserve._path)
    assert not reserve.hold(1 << 20)
    assert (outside / "file").read_text() == "precious\n"


def test_a_model_is_not_removed_through_a_link(tmp_path: Path, outside: Path) -> None:
    run = tmp_path / "run"
    (run / "run_logs").mkdir(parents=True)
    (run / "Ball").mkdir()
    (run / "Ball" / "inner").symlink_to(outside)
    entry = {"steps": 9, "reward": None, "creation_time": 0.0, "auxillary_file_paths": []}
    paths = ["Ball/inner/file", str(outside / "file"), "../outside/file"]
    status = {"Ball": {"checkpoints": [{**entry, "file_path": path} for path in paths]}}
    (run / "run_logs" / "training_status.json").write_text(json.dumps(status))
    assert ModelCheckpointManager(run).get_checkpoints("Ball") == []
