from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from quintain.errors import (
    CheckpointNotFound,
    ResourceError,
    RunDirectoryError,
    SettingsError,
)
from quintain.services.checkpoints import manager as checkpoints
from quintain.services.checkpoints.manager import CheckpointManager
from tests.services.samples import (
    ABOUT,
    committed,
    names_in,
    never,
    run_on_small_disk,
    run_python,
    state_at,
)


class TestCommit:
    def test_layout_modes_and_manifest(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path / "checkpoints", keep=2)
        checkpoint = manager.commit(state_at(8), step=8, about=ABOUT, is_best=True)
        assert checkpoint.path == tmp_path / "checkpoints" / "000001-step-8"
        assert names_in(checkpoint.path) == ["manifest.json", "state.json", "state.safetensors"]
        assert stat.S_IMODE(checkpoint.path.stat().st_mode) == 0o700
        assert {stat.S_IMODE(file.stat().st_mode) for file in checkpoint.path.iterdir()} == {0o600}
        manifest = json.loads((checkpoint.path / "manifest.json").read_text())
        assert (manifest["format"], manifest["schema"]) == ("quintain-checkpoint", 2)
        assert (manifest["commit"], manifest["step"], manifest["is_best"]) == (1, 8, True)
        assert manifest["about"] == ABOUT
        document = (checkpoint.path / "state.json").read_bytes()
        assert manifest["files"]["state.json"] == {
            "size": len(document),
            "sha256": hashlib.sha256(document).hexdigest(),
        }

    def test_everything_is_synced_before_the_rename_and_the_name_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        done: list[str] = []
        fsync, rename = os.fsync, os.rename

        def watched_fsync(fd: int) -> None:
            done.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
            fsync(fd)

        def watched_rename(source: Path, target: Path) -> None:
            done.append(f"rename to {target.name}")
            rename(source, target)

        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "rename", watched_rename)
        committed(tmp_path / "c", 5)
        temporary = done[3]
        assert temporary.startswith(f".tmp-5-{os.getpid()}-")
        assert done[:6] == [
            "state.safetensors",
            "state.json",
            "manifest.json",
            temporary,
            "rename to 000001-step-5",
            "c",
        ]

    def test_numbers_are_never_used_again(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1, 1, 1)
        shutil.rmtree(tmp_path / "000003-step-1")
        (tmp_path / "000002-step-1").rename(tmp_path / ".bad-000007-step-1")
        assert manager.commit(state_at(1), step=1, about={}).name == "000008-step-1"

    def test_an_empty_directory_in_the_way_does_not_block(self, tmp_path: Path) -> None:
        (tmp_path / "000004-step-9").mkdir(parents=True)
        assert committed(tmp_path, 1).latest(lambda text: None).name == "000005-step-1"

    def test_retention_keeps_the_newest_and_the_last_best(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path, keep=2)
        for step, is_best in [(1, True), (2, True), (3, False), (4, False), (5, False)]:
            manager.commit(state_at(step), step=step, about={}, is_best=is_best)
        assert names_in(tmp_path) == ["000002-step-2", "000004-step-4", "000005-step-5"]
        assert manager.best().step == 2

    def test_retention_does_not_count_damaged_ones(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1, 2, keep=2)
        (tmp_path / "000002-step-2" / "state.json").unlink()
        manager.commit(state_at(3), step=3, about={})
        assert [entry.step for entry in manager.entries() if entry.valid] == [1, 3]

    def test_fewer_than_two_is_not_a_choice(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"keep: found 1"):
            CheckpointManager(tmp_path, keep=1)

    def test_needs_no_torch(self) -> None:
        modules = "quintain.cli.checkpoints, quintain.services.files.run_directory"
        code = f"import sys, {modules}; print('torch' in sys.modules)"
        assert run_python(code).stdout == "False\n"


class TestResolve:
    def test_a_run_and_its_folder_mean_the_latest_valid(self, tmp_path: Path) -> None:
        committed(tmp_path / "a1" / "checkpoints", 1, 2)
        (tmp_path / "a1" / "checkpoints" / "000002-step-2" / "state.json").unlink()
        for path in (tmp_path / "a1", tmp_path / "a1" / "checkpoints"):
            assert checkpoints.load(path).manifest.step == 1
        (tmp_path / "link").symlink_to(tmp_path / "a1")
        assert checkpoints.load(tmp_path / "link").manifest.step == 1

    def test_nothing_there(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "gone"):
            with pytest.raises(CheckpointNotFound) as caught:
                checkpoints.load(path)
            assert caught.value.exit_code == 4

    def test_find_by_step_name_and_word(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1, 2)
        manager.commit(state_at(2), step=2, about={}, is_best=True)
        manager.commit(state_at(3), step=3, about={})
        found = {which: manager.find(which, never).commit for which in ("2", "000001-step-1", "best", "latest")}
        assert found == {"2": 3, "000001-step-1": 1, "best": 3, "latest": 4}
        with pytest.raises(CheckpointNotFound, match=r"'7'.*000001-step-1"):
            manager.find("7", never)


class TestFullDisk:
    def test_the_reserve_pays_for_one_more(self, tmp_path: Path, monkeypatch) -> None:
        manager = committed(tmp_path, 1)
        reserve = tmp_path / ".reserve"
        size = sum(file.stat().st_size for file in (tmp_path / "000001-step-1").iterdir())
        assert reserve.stat().st_blocks * 512 >= size
        write = os.write

        def write_if_the_reserve_is_gone(fd: int, data: bytes) -> int:
            if reserve.exists():
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(fd, data)

        monkeypatch.setattr(os, "write", write_if_the_reserve_is_gone)
        assert manager.commit(state_at(2), step=2, about={}).step == 2
        assert [entry.valid for entry in manager.entries()] == [True, True]
        assert not [name for name in names_in(tmp_path) if name.startswith(".tmp-")]
        assert reserve.exists(), "a new reserve is taken when there is space"

    @pytest.mark.parametrize("call", ["write", "fsync", "rename", "mkdir"])
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
    def test_without_space_the_old_one_stays(self, tmp_path: Path, monkeypatch, call: str, number: int) -> None:
        manager = committed(tmp_path, 1)

        def refuse(*arguments: object, **options: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(ResourceError, match=r"checkpoint of step 2: .* \(needs .* free\)") as caught:
            manager.commit(state_at(2), step=2, about={})
        assert (caught.value.code, caught.value.exit_code) == ("E0801", 8)
        monkeypatch.undo()
        assert names_in(tmp_path) == ["000001-step-1"]
        assert manager.commit(state_at(2), step=2, about={}).commit == 2

    def test_short_writes_are_continued(self, tmp_path: Path, monkeypatch) -> None:
        write = os.write
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:7]))
        (path,) = committed(tmp_path, 1).paths()
        assert checkpoints.digest(path) == checkpoints.digest_of(state_at(1))

    def test_a_read_only_disk_is_named(self, tmp_path: Path, monkeypatch) -> None:
        manager = committed(tmp_path, 1)
        monkeypatch.setattr(os, "mkdir", lambda *a: (_ for _ in ()).throw(OSError(errno.EROFS, "")))
        with pytest.raises(RunDirectoryError, match=r"not writable: .* \(Read-only file system\)") as caught:
            manager.commit(state_at(2), step=2, about={})
        assert caught.value.code == "E0305"

    def test_admission(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path / "c", keep=3)
        assert manager.admit(1000) == []
        with pytest.raises(ResourceError) as caught:
            manager.admit(1 << 55)
        assert caught.value.code == "E0801"
        assert names_in(tmp_path / "c") == []

    def test_on_a_real_small_disk(self, tmp_path: Path) -> None:
        # 64 pages of 4 kB: three checkpoints of 16 and the reserve of 16, whose place the fourth takes.
        outcome = run_on_small_disk(
            tmp_path,
            """
            import numpy as np
            from pathlib import Path
            from quintain.errors import ResourceError
            from quintain.services.checkpoints.manager import CheckpointManager
            manager = CheckpointManager(Path(sys.argv[1]) / "c", keep=9)
            for step in range(1, 9):
                try:
                    manager.commit({"training": {"w": np.zeros(7000) + step}}, step=step, about={})
                except ResourceError as error:
                    print(error.code, "needs 56" in error.message)
                    break
            print([(entry.step, entry.valid) for entry in manager.entries()], manager.sweep())
            """,
        )
        assert outcome == "E0801 True\n[(1, True), (2, True), (3, True), (4, True)] []\n"
