"""Children of any kind: started, heard of, ended, and never left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quintain.services.processes.child_environment import child_environment, withheld, withheld_note
from quintain.services.processes.supervisor import Child, Supervisor

ROOT = Path(__file__).parents[2]
HERE = "tests.services.test_supervisor"


# -- what children do ---------------------------------------------------------------------------------------------


def echo(descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    while message := channel.recv(1000):
        channel.send(message)


def fail(descriptor: int) -> None:
    raise ValueError("not today")


def leave_with_three(descriptor: int) -> None:
    print("my last words")
    sys.exit(3)


def sleep(descriptor: int) -> None:
    time.sleep(600)


def sleep_through_signals(descriptor: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    socket.socket(fileno=descriptor).send(b"r")
    time.sleep(600)


def talk_and_wait(descriptor: int) -> None:
    print("good morning", flush=True)
    socket.socket(fileno=descriptor).send(b"r")
    time.sleep(600)


def flood(descriptor: int) -> None:
    while True:
        os.write(1, b"y\n" * 30_000)


# -- the tests ----------------------------------------------------------------------------------------------------


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    supervisor = Supervisor([])
    yield supervisor
    supervisor.close()


def is_alive(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def answer(child: Child) -> bytes:
    select.select([child.channel], [], [], 20.0)
    found = child.receive()
    assert found is not None
    return found


def test_a_child_is_spoken_to_over_a_socket_of_its_own(supervisor: Supervisor) -> None:
    one, other = (supervisor.start(name, f"{HERE}:echo") for name in ("one", "other"))
    one.send_word(b"a")
    other.send_word(b"b")
    assert (answer(other), answer(one)) == (b"b", b"a")
    supervisor.read_reports()
    assert is_alive(one.pid)
    supervisor.stop([one, other])
    assert (one.exit_code, one.describe_end()) == (-signal.SIGTERM, "was killed by SIGTERM")


@pytest.mark.parametrize(
    ("entry", "exit_code", "said"),
    [
        ("leave_with_three", 3, "my last words"),
        ("fail", 1, "ValueError: not today"),
        ("no_such_function", 1, "no_such"),
    ],
)
def test_an_end_is_reported_with_its_code_and_last_words(
    entry: str, exit_code: int, said: str, supervisor: Supervisor
) -> None:
    child = supervisor.start("child", f"{HERE}:{entry}")
    assert supervisor.await_end(child, 30.0)
    assert child.exit_code == exit_code
    assert said in child.last_output
    assert child.describe_end() == f"ended with exit code {exit_code}"
    child.close()


@pytest.mark.slow
def test_a_child_that_ignores_signals_is_killed(supervisor: Supervisor) -> None:
    child = supervisor.start("deaf", f"{HERE}:sleep_through_signals")
    assert answer(child) == b"r"
    supervisor.stop([child])
    assert child.exit_code == -signal.SIGKILL


def test_a_child_is_asked_where_it_is(supervisor: Supervisor) -> None:
    child = supervisor.start("sleeper", f"{HERE}:sleep")
    assert supervisor.await_end(child, 1.0) is False
    stack = supervisor.stack_of(child)
    assert "in sleep" in stack
    assert "test_supervisor.py" in stack
    supervisor.stop([child])


def test_with_its_last_child_the_server_ends_and_comes_back_for_the_next(supervisor: Supervisor) -> None:
    first = supervisor.start("a", f"{HERE}:leave_with_three")
    assert supervisor.await_end(first, 30.0)
    supervisor.stop([first])
    second = supervisor.start("a", f"{HERE}:leave_with_three")
    assert supervisor.await_end(second, 30.0)
    assert second.exit_code == 3
    second.close()


def test_children_die_with_their_server(supervisor: Supervisor) -> None:
    child = supervisor.start("child", f"{HERE}:sleep_through_signals")
    answer(child)
    assert supervisor._server is not None
    os.kill(supervisor._server.pid, signal.SIGKILL)
    assert supervisor.await_end(child, 10.0)
    assert wait_until(lambda: not is_alive(child.pid))
    child.close()


def test_a_flood_is_kept_to_two_files_of_a_megabyte(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.log_to(tmp_path)
    child = supervisor.start("loud", f"{HERE}:flood")
    assert wait_until(lambda: (tmp_path / "loud.log.1").exists(), 30.0)
    supervisor.stop([child])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loud.log", "loud.log.1"]
    assert all(path.stat().st_size <= 1_000_000 for path in tmp_path.iterdir())
    assert child.last_output.endswith("y\ny\n")


def test_what_was_printed_before_the_log_has_a_place_is_not_lost(supervisor: Supervisor, tmp_path: Path) -> None:
    child = supervisor.start("child", f"{HERE}:talk_and_wait")
    assert answer(child) == b"r"
    supervisor.log_to(tmp_path)
    assert wait_until(lambda: (tmp_path / "child.log").exists())
    supervisor.stop([child])
    assert (tmp_path / "child.log").read_text() == "good morning\n"


def test_all_variables_but_secrets_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = {
        "CARLA_ROOT": "/opt/carla",
        "SC2PATH": "/opt/sc2",
        "HF_HOME": "/data/hf_cache_directory",
        "TOKENIZERS_PARALLELISM": "false",
        "KEYBOARD_LAYOUT": "de",
        "MUJOCO_GL": "egl",
        "OLDPWD": "/data",
        "PATTERN": "a*",
        "PASSES": "2",
    }
    secret = {
        "OPENAI_API_KEY": "1",
        "PYTHON_SECRET": "2",
        "GITHUB_TOKEN": "3",
        "db_passwd": "4",
        "DB_PASS": "5",
        "MYSQL_PWD": "6",
        "GITLAB_PAT": "7",
        "INNOCENT": "glpat-abcdefghijkl1234",
        "HARMLESS_NAME": "ghp_abcdefghijkl1234",
        "DATABASE_URL": "postgres://me:letmein@example.org/db",
    }
    for name, value in {**harmless, **secret}.items():
        monkeypatch.setenv(name, value)
    passed = child_environment()
    assert passed["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
    assert "PATH" in passed
    assert {name: passed.get(name) for name in harmless} == harmless
    assert not set(secret) & set(passed)
    assert set(secret) <= withheld()
    assert child_environment(["OPENAI_API_KEY"])["OPENAI_API_KEY"] == "1"


def test_the_note_names_what_was_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    assert withheld_note() == ()
    for letter in "CAB":
        monkeypatch.setenv(f"{letter}_TOKEN", "1")
    (note,) = withheld_note(["B_TOKEN"])
    assert "do not see A_TOKEN, C_TOKEN, which look like secrets" in note
    assert "pass_environment=[A_TOKEN]" in note


OWNER = """
import json, sys, time
from quintain.services.processes.supervisor import Supervisor
supervisor = Supervisor([])
children = [supervisor.start(str(i), "tests.services.test_supervisor:sleep_through_signals") for i in range(3)]
while any(child.pid is None for child in children):
    supervisor.read_reports()
print(json.dumps([supervisor._server.pid, *(child.pid for child in children)]), flush=True)
time.sleep(600)
"""


def test_nobody_outlives_an_owner_that_was_killed_by_two_seconds() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, env=environment, text=True)
    assert owner.stdout is not None
    pids = json.loads(owner.stdout.readline())
    assert all(map(is_alive, pids))
    owner.kill()
    owner.wait(timeout=10)
    killed = time.monotonic()
    assert wait_until(lambda: not any(map(is_alive, pids)), 10.0)
    assert time.monotonic() - killed < 2.0
    owner.stdout.close()


HASTY_OWNER = """
import json, sys, time
from pathlib import Path
from quintain.services.processes.supervisor import Supervisor
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
supervisor = Supervisor(["imported_by_the_server"])
supervisor.start("child", "tests.services.test_supervisor:sleep")
removed = folder / "removed"
removed.mkdir()
supervisor.remove_at_end(removed)
print(supervisor._server.pid, flush=True)
time.sleep(600)
"""
IMPORTS_FOR_LONG = """
import pathlib, time
folder = pathlib.Path(__file__).parent
(folder / "begun").touch()
while not (folder / "gate").exists():
    time.sleep(0.01)
"""


def test_a_folder_goes_also_if_the_owner_is_killed_before_the_server_can_read(tmp_path: Path) -> None:
    (tmp_path / "imported_by_the_server.py").write_text(IMPORTS_FOR_LONG)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", HASTY_OWNER, str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
    ) as owner:
        assert owner.stdout is not None
        server = int(owner.stdout.readline())
        assert wait_until((tmp_path / "begun").exists, 60.0)
        owner.kill()
    assert (tmp_path / "removed").exists()
    (tmp_path / "gate").touch()
    assert wait_until(lambda: not is_alive(server), 30.0)
    assert not (tmp_path / "removed").exists()
