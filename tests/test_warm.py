"""Programs that a warm process forks are programs: their own pid, streams, folder, environment and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import conftest, warm

pytestmark = pytest.mark.slow

ASK = "import os, sys; print(os.getcwd(), os.environ['ASKED'], sys.argv[1:], sys.stdin.read()); sys.exit(7)"


def test_a_program_has_its_own_folder_environment_words_streams_and_exit_code(tmp_path: Path) -> None:
    environment = {**warm.ENVIRONMENT, "ASKED": "yes"}
    words = [sys.executable, "-c", ASK, "a", "b"]
    for run in (warm.run, subprocess.run):
        ended = run(words, cwd=tmp_path, env=environment, input="given", capture_output=True, text=True)  # type: ignore[operator]
        assert (ended.returncode, ended.stderr) == (7, "")
        assert ended.stdout == f"{tmp_path} yes ['a', 'b'] given\n"


def test_a_program_that_is_killed_says_so_and_leaves_the_others_alone() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as first:
        with warm.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
            for process in (first, other):
                assert process.stdout is not None
                assert int(process.stdout.readline()) == process.pid != os.getpid()
            other.kill()
            assert other.wait(60) == -signal.SIGKILL
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert first.wait(60) == -signal.SIGINT


def test_an_error_is_told_as_an_interpreter_tells_it() -> None:
    ended = warm.run([sys.executable, "-c", "raise ValueError('no')"], capture_output=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ValueError: no"


def test_a_shell_runs_a_program_by_the_command() -> None:
    line = f"echo 'print(6 * 7)' | {warm.command('-')} && {warm.command('-c', 'raise SystemExit(3)')}"
    ended = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (3, "42\n")


def test_what_a_failed_test_leaves_is_ended() -> None:
    around = conftest.pytest_runtest_call()
    next(around)
    left = warm.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.PIPE, text=True)
    with pytest.raises(AssertionError, match="the test's own"):
        around.throw(AssertionError("the test's own"))
    assert left.returncode == -signal.SIGKILL
    assert left.stdout is not None
    assert left.stdout.closed
    assert left not in warm.running()
