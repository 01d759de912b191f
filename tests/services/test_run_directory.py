from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quintain.errors import ResourceError, RunDirectoryError, SettingsError
from quintain.services.files import atomic, run_directory
from quintain.services.files.run_directory import RunDirectory, Status
from quintain.services.reporting.event_log import EventLog
from tests.services.samples import names_in, run_on_small_disk


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


class TestCreate:
    def test_makes_a_private_directory(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path / "runs", "a1")
        assert run.path == tmp_path / "runs" / "a1"
        for path in (run.path, run.checkpoints):
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert names_in(tmp_path / "runs") == ["a1"]

    def test_refuses_a_run_that_exists_and_says_where_it_stands(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        run.write_status(Status("finished", 8192))
        before = contents(tmp_path)
        with pytest.raises(RunDirectoryError, match=r'run "a1" exists \(step 8192, finished\)') as caught:
            RunDirectory.create(tmp_path, "a1")
        assert (caught.value.code, caught.value.exit_code) == ("E0302", 3)
        assert contents(tmp_path) == before

    def test_force_moves_the_old_run_away_whole(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        run.write_config("seed: 1\n")
        RunDirectory.create(tmp_path, "a1", force=True)
        old, new = sorted(tmp_path.iterdir(), key=lambda path: -len(path.name))
        assert old.name.startswith("a1.old-2")
        assert (old / "config.yaml").read_text().startswith("seed: 1\n")
        assert names_in(new) == ["checkpoints"]

    def test_force_does_not_move_a_run_in_use(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        with run.lock(), pytest.raises(RunDirectoryError, match="in use") as caught:
            RunDirectory.create(tmp_path, "a1", force=True)
        assert caught.value.code == "E0301"
        assert names_in(tmp_path) == ["a1"]

    @pytest.mark.parametrize(
        "run_id", ["../a", "a/b", "/a", "", ".", "..", "-a", "a b", "a\n", "x" * 65, "NUL", "latest"]
    )
    def test_refuses_names_that_are_not_plain(self, tmp_path: Path, run_id: str) -> None:
        with pytest.raises(SettingsError, match="--run-id") as caught:
            RunDirectory.create(tmp_path / "runs", run_id)
        assert caught.value.exit_code == 2
        assert names_in(tmp_path) == []

    def test_a_place_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "runs").write_text("a file")
        with pytest.raises(RunDirectoryError, match=r"run directory is not writable: .*runs/a1") as caught:
            RunDirectory.create(tmp_path / "runs", "a1")
        assert (caught.value.code, caught.value.exit_code) == ("E0305", 3)

    def test_real_read_only_and_full_disks(self, tmp_path: Path) -> None:
        outcome = run_on_small_disk(
            tmp_path,
            """
            import subprocess
            from pathlib import Path
            from quintain.errors import QuintainError
            from quintain.services.files.run_directory import RunDirectory
            disk = Path(sys.argv[1])
            run = RunDirectory.create(disk, "a1")
            def attempt(what):
                try:
                    what()
                except QuintainError as error:
                    print(error.code, error.exit_code)
            (disk / "filler").write_bytes(bytes(256 * 1024))
            attempt(lambda: RunDirectory.create(disk, "a2"))
            attempt(lambda: run.lock().__enter__())
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
            attempt(lambda: RunDirectory.create(disk, "a2"))
            attempt(lambda: run.lock().__enter__())
            print(sorted(path.name for path in disk.iterdir()))
            """,
        )
        assert outcome == "E0801 8\nE0801 8\nE0305 3\nE0305 3\n['a1', 'filler']\n"


class TestOpenExisting:
    def test_nothing_there_is_refused(self, tmp_path: Path) -> None:
        for path in (tmp_path, tmp_path / "gone"):
            with pytest.raises(RunDirectoryError, match="is not a run's directory: it has no checkpoints/") as caught:
                RunDirectory.open_existing(path)
            assert (caught.value.code, caught.value.exit_code) == ("E0303", 3)

    def test_changes_nothing(self, tmp_path: Path) -> None:
        path = RunDirectory.create(tmp_path, "a1").path
        assert RunDirectory.open_existing(path).run_id == "a1"
        assert names_in(path) == ["checkpoints"]


HOLDER = """
import sys, time
from pathlib import Path
from quintain.services.files.run_directory import RunDirectory
with RunDirectory.open_existing(Path(sys.argv[1])).lock():
    print("held", flush=True)
    time.sleep(60)
"""


class TestLock:
    def test_a_second_process_is_told_who_holds_it_and_changes_nothing(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        command = [sys.executable, "-c", HOLDER, str(run.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            before = contents(run.path)
            expected = rf'run "a1" is in use by pid {holder.pid} on host .+ since \d\d:\d\d UTC\. Wait, stop it'
            with pytest.raises(RunDirectoryError, match=expected) as caught, run.lock():
                pytest.fail("the lock was given twice")
            assert (caught.value.code, caught.value.exit_code) == ("E0301", 3)
            assert contents(run.path) == before
            holder.send_signal(signal.SIGKILL)
        with run.lock():
            assert json.loads((run.path / "LOCK").read_text())["pid"] == os.getpid()

    def test_it_is_given_back_at_the_end(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        for _ in range(2):
            with run.lock():
                pass

    def test_no_program_started_meanwhile_inherits_it(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        with run.lock():
            sleeper = subprocess.Popen(["sleep", "60"], close_fds=False)
        try:
            with run.lock():
                pass
        finally:
            sleeper.kill()
            sleeper.wait()

    def test_it_waits_a_moment_for_an_owner_that_is_dying(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # On a busy machine the child may get its turn late.
        monkeypatch.setattr(run_directory, "_LOCK_WAIT_SECONDS", 60.0)
        run = RunDirectory.create(tmp_path, "a1")
        child = os.fork()
        if child == 0:
            fcntl.flock(os.open(run.path / "LOCK", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
            time.sleep(0.2)
            os._exit(0)
        while not (run.path / "LOCK").exists():
            time.sleep(0.001)
        with run.lock():
            pass
        os.waitpid(child, 0)

    def test_an_unreadable_owner_is_no_obstacle_to_the_message(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        with run.lock():
            (run.path / "LOCK").write_bytes(b"\xff[")
            with pytest.raises(RunDirectoryError, match="in use by another process"), run.lock():
                pytest.fail("the lock was given twice")

    def test_a_link_in_its_place_is_not_followed(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        (tmp_path / "victim").write_text("precious")
        (run.path / "LOCK").symlink_to(tmp_path / "victim")
        with pytest.raises(RunDirectoryError, match="not a regular file") as caught, run.lock():
            pytest.fail("the link was followed")
        assert caught.value.code == "E0306"
        assert (tmp_path / "victim").read_text() == "precious"

    def test_it_sweeps_what_a_killed_process_left(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        (run.path / ".tmp-status.json-1-ab").write_text("{")
        (run.folder("rollouts") / ".tmp-rollout-1-ab").write_text("{")
        (run.path / "rollouts" / "rollout").write_text("{}")
        with run.lock():
            assert names_in(run.path) == ["LOCK", "checkpoints", "rollouts"]
            assert names_in(run.path / "rollouts") == ["rollout"]


class TestSmallFiles:
    def test_status_round_trip(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        assert run.read_status() is None
        status = Status("failed", 12, "000001-step-12", 4711, 5, "env 3 failed", resumable=True)
        run.write_status(status)
        assert json.loads((run.path / "status.json").read_text()) == {
            "state": "failed",
            "step": 12,
            "checkpoint": "000001-step-12",
            "pid": 4711,
            "exit_code": 5,
            "reason": "env 3 failed",
            "resumable": True,
        }
        assert run.read_status() == status
        assert stat.S_IMODE((run.path / "status.json").stat().st_mode) == 0o600

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"state": "odd", "step": 1}', '{"state": "running", "step": "x"}']
    )
    def test_a_status_that_makes_no_sense_is_none(self, tmp_path: Path, text: str) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        (run.path / "status.json").write_text(text)
        assert run.read_status() is None

    def test_a_kill_at_any_call_leaves_the_old_or_the_new_status(self, tmp_path: Path, kill_at) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        seen = set()
        for moment in ("before", "half"):
            for fatal_call in range(1, 100):
                run.write_status(Status("running", 1))
                was_killed = kill_at(lambda: run.write_status(Status("running", 2)), fatal_call, moment)
                status = run.read_status()
                assert status is not None
                seen.add(status.step)
                if not was_killed:
                    break
            assert fatal_call > 5
        assert seen == {1, 2}

    def test_an_unclosed_run_is_noted(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        assert run.describe_unclosed(0) is None
        run.write_status(Status("running", 13000, pid=4711))
        assert run.describe_unclosed(12288) == (
            "note: previous process ended without closing the run (pid 4711); resuming from step 12288"
        )
        run.write_status(Status("stopped", 13000, pid=4711))
        assert run.describe_unclosed(12288) is None

    def test_config_environment_and_crash(self, tmp_path: Path) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        run.write_config("seed: 3\n")
        run.write_environment({"python": "3.11"})
        crash = run.write_crash("Traceback \udcff")
        assert (run.path / "config.yaml").read_text().startswith("seed: 3\n")
        assert json.loads((run.path / "env.json").read_text()) == {"python": "3.11"}
        assert crash.parent == run.path / "crash"
        assert crash.name.endswith(f"-{os.getpid()}.txt")
        assert crash.read_text() == "Traceback \\udcff"
        assert run.write_crash("another") != crash

    def test_a_full_disk_while_writing_status_is_a_resource_error(self, tmp_path: Path, monkeypatch) -> None:
        run = RunDirectory.create(tmp_path, "a1")
        run.write_status(Status("running", 1))

        def refuse(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", refuse)
        with pytest.raises(ResourceError, match=r"write status\.json: No space left"):
            run.write_status(Status("running", 2))
        monkeypatch.undo()
        assert run.read_status() == Status("running", 1)
        assert not list(run.path.glob(f"{atomic.TEMPORARY_PREFIX}*"))


class TestEventLog:
    def test_numbers_go_on_after_a_restart_and_a_torn_line(self, tmp_path: Path) -> None:
        path = tmp_path / "events.jsonl"
        log = EventLog(path)
        log.append("start", step=0)
        log.append("recovery", step=8, code="W0501", detail={"lane": 3})
        log.close()
        with open(path, "ab") as file:
            file.write(b'{"seq": 3, "ki')
        log = EventLog(path)
        log.append("start", step=8)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert [record["seq"] for record in records] == [1, 2, 3]
        assert list(records[1]) == ["t_mono", "t_utc", "seq", "kind", "code", "step", "detail"]
        assert (records[1]["code"], records[1]["detail"]) == ("W0501", {"lane": 3})
        assert records[1]["t_utc"].endswith("+00:00")

    def test_a_full_disk_is_counted(self, tmp_path: Path, monkeypatch) -> None:
        log = EventLog(tmp_path / "events.jsonl")

        def refuse(fd: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", refuse)
        log.append("start", step=0)
        assert log.num_dropped == 1
