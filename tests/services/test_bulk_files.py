"""Bulk arrays in checkpoints: written once, shared by the checkpoints that have them, and checked like all else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.core.state import BulkArray
from quintain.errors import CheckpointError
from quintain.runs.ranks.state import pack, unpack
from quintain.services.checkpoints import manager as checkpoints
from quintain.services.checkpoints import state_files
from quintain.services.checkpoints.manager import CheckpointManager
from tests.services.samples import ABOUT, flip_bit, names_in, never


def state_at(step: int, *segments: int) -> dict[str, Any]:
    """Returns a state with one bulk array for each number."""
    arrays = [BulkArray(np.full((50, 3), number, np.float32)) for number in segments]
    return {"training": {"store": {"rows": arrays}, "env_steps": step}, "records": {}}


def commit(manager: CheckpointManager, step: int, *segments: int) -> Path:
    return manager.commit(state_at(step, *segments), step=step, about=ABOUT).path


def bulk_in(path: Path) -> dict[str, int]:
    """Returns the bulk files of a checkpoint and how many names each has."""
    return {file.name: file.stat().st_nlink for file in sorted(path.glob("*.bulk"))}


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=5)
    first = commit(manager, 1, 10, 11)
    second = commit(manager, 2, 10, 12)
    name = f"{BulkArray(np.full((50, 3), 10, np.float32)).sha256}.bulk"
    assert bulk_in(first)[name] == bulk_in(second)[name] == 2
    assert os.path.samefile(first / name, second / name)
    assert sorted(bulk_in(second).values()) == [1, 2]


def test_a_retired_checkpoint_takes_only_its_own_files_away(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2)
    for step in range(1, 6):
        commit(manager, step, 7, step)
    assert [entry.valid for entry in manager.entries()] == [True, True]
    loaded = checkpoints.load(manager.latest(never).path)
    assert [array[0, 0] for array in loaded.state["training"]["store"]["rows"]] == [7.0, 5.0]
    # Three different arrays are left on the disk: 7, 4 and 5.
    assert len({os.stat(file).st_ino for file in tmp_path.glob("*/*.bulk")}) == 3


def test_what_comes_back_is_what_was_there(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=2)
    chance = np.random.default_rng(0)
    arrays = [chance.integers(0, 2, (4, 5)).astype(kind) for kind in ("float32", "uint8", "int64", "bool")]
    state = {"training": {"rows": [BulkArray(array) for array in arrays]}, "records": {}}
    saved = manager.commit(state, step=1, about=ABOUT)
    found = checkpoints.load(saved.path).state["training"]["rows"]
    for array, other in zip(arrays, found, strict=True):
        assert other.dtype == array.dtype
        np.testing.assert_array_equal(other, array)
    assert saved.digest == checkpoints.digest(saved.path) == checkpoints.digest_of(state)


def test_the_digest_covers_them() -> None:
    assert checkpoints.digest_of(state_at(1, 5, 6)) != checkpoints.digest_of(state_at(1, 6, 5))
    assert checkpoints.digest_of(state_at(1, 5)) != checkpoints.digest_of(state_at(1, 8))


def test_damage_is_found_and_moved_aside(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=5)
    commit(manager, 1, 1)
    broken = commit(manager, 2, 2)
    [name] = bulk_in(broken)
    flip_bit(broken / name, 77)
    assert manager.latest(lambda text: None).step == 1
    with pytest.raises(CheckpointError, match=f"{name}: sha256 differs"):
        checkpoints.verify(broken)
    [warning] = manager.sweep()
    assert f"000002-step-2 is damaged ({name}: sha256 differs); using 000001-step-1" in warning


def test_damage_in_a_shared_file_is_damage_in_all_that_share_it(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=5)
    for step in (1, 2):
        path = commit(manager, step, 3)
    commit(manager, 3, 4)
    [name] = bulk_in(path)
    flip_bit(path / name, 1)
    assert [entry.valid for entry in manager.entries()] == [False, False, True]
    assert len(manager.sweep()) == 2


@pytest.mark.parametrize("how", ["missing", "shorter", "extra", "link to elsewhere"])
def test_files_that_do_not_belong_are_refused(tmp_path: Path, how: str) -> None:
    manager = CheckpointManager(tmp_path / "checkpoints", keep=5)
    path = commit(manager, 1, 1)
    [name] = bulk_in(path)
    if how == "missing":
        (path / name).unlink()
    elif how == "shorter":
        (path / name).write_bytes(b"1234")
    elif how == "extra":
        (path / f"{'0' * 64}.bulk").write_bytes(b"")
    else:
        (path / name).rename(tmp_path / "elsewhere")
        (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError):
        checkpoints.verify(path)


def test_a_name_that_is_not_its_contents_is_refused(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, keep=5)
    path = commit(manager, 1, 1)
    manifest = (path / "manifest.json").read_text()
    [name] = bulk_in(path)
    other = f"{'a' * 64}.bulk"
    (path / name).rename(path / other)
    (path / "manifest.json").write_text(manifest.replace(name, other))
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoints.verify(path)


def test_a_document_that_asks_for_another_size_is_refused() -> None:
    encoded = state_files.encode(state_at(1, 1))
    document = encoded.document_bytes().replace(b"[50,3]", b"[50,4]")
    with pytest.raises(ValueError, match="another size"):
        state_files.decode(state_files.parse(encoded.tensor_bytes(), document, encoded.bulk))
    with pytest.raises(ValueError, match="not there"):
        state_files.decode(state_files.parse(encoded.tensor_bytes(), encoded.document_bytes(), {}))
    empty = state_files.encode(state_at(1))
    with pytest.raises(ValueError, match="not in the tree"):
        state_files.decode(state_files.parse(empty.tensor_bytes(), empty.document_bytes(), encoded.bulk))


def test_a_disk_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    manager = CheckpointManager(tmp_path, keep=5)
    first, second = commit(manager, 1, 1), commit(manager, 2, 1)
    assert list(bulk_in(first).values()) == list(bulk_in(second).values()) == [1]
    assert all(entry.valid for entry in manager.entries())


def test_ranks_send_them_inside(tmp_path: Path) -> None:
    state = state_at(4, 1, 2)
    [one, two] = unpack(pack(state))["training"]["store"]["rows"]
    assert one[0, 0] == 1.0
    assert two[0, 0] == 2.0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_kill_at_any_call_leaves_the_old_or_the_new_checkpoint(tmp_path: Path, kill_at: Any, moment: str) -> None:
    start = tmp_path / "start"
    manager = CheckpointManager(start, keep=2)
    for step in (1, 2):
        commit(manager, step, 7, step)
    digests = {step: checkpoints.digest_of(state_at(step, 7, step)) for step in (2, 3)}
    steps_seen = set()
    for fatal_call in range(1, 1000):
        directory = tmp_path / f"at-{fatal_call}"
        shutil.copytree(start, directory)
        manager = CheckpointManager(directory, keep=2)
        was_killed = kill_at(lambda m=manager: commit(m, 3, 7, 3), fatal_call, moment)
        assert all(entry.valid for entry in manager.entries())
        latest = manager.latest(never)
        assert checkpoints.digest(latest.path) == digests[latest.step]
        steps_seen.add(latest.step)
        assert manager.sweep() == []
        assert not [name for name in names_in(directory) if name.startswith(".")]
        commit(manager, 4, 7, 4)
        assert [entry.valid for entry in manager.entries()] == [True, True]
        shutil.rmtree(directory)
        if not was_killed:
            break
    assert fatal_call > 30
    assert steps_seen == {2, 3}
