"""Workers of a local cluster that are forked: what happens to those that ask and get none, without Ray."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("ray")

from quintain.placements.ray import start_worker
from quintain.services.processes.supervisor import Child, Supervisor
from tests.hold import wait_for

WORKER = """
import json, os, sys
from pathlib import Path
import numpy as np
score = Path("/proc/self/oom_score_adj").read_text()
found = {"how": HOW, "arguments": sys.argv[1:], "cwd": os.getcwd(), "name": os.environ.get("NAME"), "score": score}
found["drawn"] = np.random.random()
print(json.dumps(found), flush=True)
"""
WAITS = """
import os, time
while not os.path.exists("GATE"):
    time.sleep(0.01)
"""
STARTS_A_THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"


@contextmanager
def forks(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> Iterator[Child]:
    """Starts the process that forks workers, as a local cluster does; it imports a module of this text."""
    (folder / "imported_by_forks.py").write_text(module.replace("GATE", str(folder / "gate")))
    for how in ("default", "setup"):
        (folder / f"{how}_worker.py").write_text(WORKER.replace("HOW", repr(how)))
    monkeypatch.syspath_prepend(str(folder))
    supervisor = Supervisor(["quintain.placements.ray.forks"])
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(folder / start_worker.SOCKET))
            listener.listen()
            child = supervisor.start("forks", "quintain.placements.ray.forks:serve")
            child.send({"modules": ["imported_by_forks"]}, [listener.fileno()])

        def is_started() -> bool:
            supervisor.read_reports()
            return child.pid is not None

        wait_for(is_started)
        yield child
    finally:
        supervisor.close()


def ask(folder: Path) -> subprocess.Popen[str]:
    """Starts a worker as Ray does."""
    words = [sys.executable, str(folder / "default_worker.py"), "--language=PYTHON", f"--temp-dir={folder / 'r'}"]
    return subprocess.Popen(
        ["choom", "-n", "500", "--", sys.executable, start_worker.__file__, *words], cwd=folder,
        env={**os.environ, "NAME": "walker"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def told(asking: subprocess.Popen[str]) -> dict[str, object]:
    # A worker that is forked writes where the one that asked for it would have.
    return dict(json.loads(asking.communicate(timeout=60)[0]))


@pytest.mark.slow
def test_a_fork_is_as_the_process_that_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with forks(tmp_path, monkeypatch, "import numpy") as child:
        held = tmp_path / "held"
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hasty, held.open("w") as stream:
            hasty.connect(str(tmp_path / start_worker.SOCKET))
            socket.send_fds(hasty, [b'{"arguments'], [stream.fileno()] * 3)
        # One that has ended in the middle of its request takes nothing from those after it.
        expected = {
            "how": "default",
            "arguments": [f"--temp-dir={tmp_path / 'r'}"],
            "cwd": str(tmp_path),
            "name": "walker",
            "score": "500\n",
        }
        found = [told(ask(tmp_path)) for _ in range(2)]
        drawn = {each.pop("drawn") for each in found}
        assert found == [expected, expected]
        assert len(drawn) == 2, "numpy's global random stream is the same in all forks"
        open_there = {os.path.realpath(each) for each in Path(f"/proc/{child.pid}/fd").iterdir()}
        assert str(held.resolve()) not in open_there, "streams of a request that was not whole are never closed"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["it is killed", "an import starts a thread"])
def test_requests_that_wait_for_a_fork_in_vain_are_met_by_ray(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with forks(tmp_path, monkeypatch, WAITS + STARTS_A_THREAD) as child:
        asking = ask(tmp_path)
        wait_for(lambda: _is_connected(tmp_path))
        assert asking.poll() is None, "nothing was forked yet"
        if how == "it is killed":
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        else:
            (tmp_path / "gate").touch()
        assert told(asking)["how"] == "setup"


def _is_connected(folder: Path) -> bool:
    # The listener, and the other end of each connection to it, have its path.
    return Path("/proc/net/unix").read_text().count(str(folder / start_worker.SOCKET)) > 1
