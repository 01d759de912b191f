"""What a kill during the making of a run's directory left is removed later, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from quintain.services.files.run_directory import RunDirectory
from tests.services.samples import names_in

LEFT = ".tmp-a1-4711-0123abcd"
HOURS_AGO = 3 * 3600


def age(path: Path, seconds: float) -> None:
    """Makes a file or directory look as old as that, compared with its folder's clock."""
    now = path.parent.stat().st_mtime
    os.utime(path, (now - seconds, now - seconds))


def unborn(runs_dir: Path, name: str = LEFT, *, has_config: bool = True) -> Path:
    path = runs_dir / name
    (path / "checkpoints").mkdir(parents=True)
    if has_config:
        (path / "config.yaml").write_text("run: {}\n")
    return path


def test_the_next_run_removes_what_is_old(tmp_path: Path) -> None:
    unborn(tmp_path)
    unborn(tmp_path, ".tmp-b-c-2-12-89abcdef", has_config=False)
    (tmp_path / ".tmp-probe-4711-0123abcd").write_bytes(b"0")
    for path in list(tmp_path.iterdir()):
        age(path, HOURS_AGO)
    RunDirectory.create(tmp_path, "a2")
    assert names_in(tmp_path) == ["a2"]


def test_what_may_still_be_in_the_making_stays(tmp_path: Path) -> None:
    young, old = unborn(tmp_path), unborn(tmp_path, ".tmp-a1-4712-0123abcd")
    age(young, 1800)
    age(old, HOURS_AGO)
    RunDirectory.create(tmp_path, "a2")
    assert names_in(tmp_path) == [LEFT, "a2"]


def test_what_is_not_of_our_making_stays(tmp_path: Path) -> None:
    with_more = unborn(tmp_path)
    (with_more / "thesis.tex").write_text("...")
    with_checkpoint = unborn(tmp_path, ".tmp-a1-4713-0123abcd")
    (with_checkpoint / "checkpoints" / "000001-step-0").mkdir()
    other_name = unborn(tmp_path, ".tmp-mine")
    elsewhere = unborn(tmp_path / "elsewhere", "kept")
    link = tmp_path / ".tmp-a1-4714-0123abcd"
    link.symlink_to(elsewhere)
    for path in (with_more, with_checkpoint, other_name, elsewhere):
        age(path, HOURS_AGO)
    now = tmp_path.stat().st_mtime
    os.utime(link, (now - HOURS_AGO, now - HOURS_AGO), follow_symlinks=False)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    run = RunDirectory.create(tmp_path, "a2")
    after = sorted(str(path) for path in tmp_path.rglob("*") if run.path not in (path, *path.parents))
    assert after == before


def test_a_kill_inside_creation_leaves_such_a_directory(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from quintain.services.files import run_directory
run_directory.os.rename = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
run_directory.RunDirectory.create(Path(sys.argv[1]), "a1", config="run: {}\\n")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.name.startswith(".tmp-a1-")
    age(left, HOURS_AGO)
    RunDirectory.create(tmp_path, "a2")
    assert names_in(tmp_path) == ["a2"]
