"""Starts Python programs by forking a process that has imported everything, which saves each of them two seconds.

`Popen` and `run` are those of `subprocess` for a command that begins with `sys.executable`: the program is a process of
its own, with its own pid, files, folder and environment, and may be killed at any moment. What it starts itself (ranks,
the server of workers) is forked from it as long as it has one thread. Variables that libraries read while they are
imported (OMP_NUM_THREADS, NUMBA_CACHE_DIR, ...) have the values of the tests' process, and nothing can be said about
imports or the interpreter's flags: such tests start an interpreter. `command` is for shells.
"""

from __future__ import annotations

import array
import atexit
import fcntl
import inspect
import json
import os
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
"""Finds this checkout from any working directory."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class _Popen(subprocess.Popen[Any]):
    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        signature = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        given = signature.bind(self, *arguments, **named).arguments
        executable, *words = map(os.fspath, given["args"])
        assert executable == sys.executable, f"{executable} is not warm"
        streams = [given["p2cread"], given["c2pwrite"], given["errwrite"]]
        self._fork(
            {
                "words": words,
                "folder": os.fspath(given["cwd"] or os.getcwd()),
                "environment": dict(os.environ if given["env"] is None else given["env"]),
                "is_session": given["start_new_session"],
                "numbers": [0, 1, 2, *given["pass_fds"]],
            },
            [*(number if stream == -1 else stream for number, stream in enumerate(streams)), *given["pass_fds"]],
        )
        self._child_created = True
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in names))  # type: ignore[attr-defined]

    def _fork(self, order: dict[str, Any], files: list[int]) -> None:
        raise NotImplementedError


class Popen(_Popen):
    """A program that a warm process forks; otherwise what `subprocess.Popen` is."""

    def __init__(self, words: list[str], *, imports: Sequence[str] = (), **options: Any) -> None:
        """Starts the program; the warm process imports these modules once, for it and all that follow."""
        self.imports = [*imports]
        super().__init__(words, **options)
        _running.add(self)

    def _fork(self, order: dict[str, Any], files: list[int]) -> None:
        self.link = _ask(_address(), {**order, "imports": self.imports}, files)
        (self.pid,) = struct.unpack("i", _received(self.link, 4))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        return self._end(0)

    def _wait(self, timeout: float | None) -> int:
        if (code := self._end(timeout)) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self.link], [], [], timeout)[0]:
            with self.link:
                (self.returncode,) = struct.unpack("i", _received(self.link, 4))
            _running.discard(self)
        return self.returncode


_running: weakref.WeakSet[Popen] = weakref.WeakSet()


def running() -> set[Popen]:
    """Returns the programs of this process whose end was not asked for yet."""
    return {*_running}


def end(programs: set[Popen]) -> None:
    """Kills programs that a failed test left, and closes their streams, so that no later test is blamed for them."""
    for program in programs:
        with program:
            program.kill()


def run(words: list[str], *, timeout: float = 200, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end and returns what it printed."""
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(words, **{**options, "text": True}) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process's servers of workers and collectors be forked from the warm process."""
    from quintain.services.processes import supervisor

    monkeypatch.setattr(supervisor, "subprocess", types.SimpleNamespace(**{**vars(subprocess), "Popen": Popen}))


def command(*words: str) -> str:
    """Returns a shell's command line that runs `sys.executable` with the words (and those that follow) warmly."""
    # Without site-packages this interpreter is there in hundredths of a second.
    return shlex.join([sys.executable, "-I", "-S", __file__, _address(), *words])


_FOLDER = tempfile.gettempdir()
"""Asked at import: a test may have put a folder of its own in its place, which ends with that test."""
_server: list[tuple[subprocess.Popen[bytes], str]] = []


def _address() -> str:
    """Returns where the warm process of this process answers; starts it for the first who asks."""
    if not _server:
        address = tempfile.mkdtemp(prefix="quintain-warm-", dir=_FOLDER) + "/socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        listener.listen(64)
        words = [sys.executable, "-c", f"from tests.warm import serve; serve({listener.fileno()})"]
        environment = {**ENVIRONMENT, **_ONE_THREAD}
        files = [listener.fileno()]
        process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=files, env=environment, cwd=ROOT)
        listener.close()
        _server.append((process, address))
        atexit.register(_stop)
    return _server[0][1]


def _stop() -> None:
    for process, address in _server:
        process.communicate()
        os.unlink(address)
        os.rmdir(os.path.dirname(address))


def _ask(address: str, order: dict[str, Any], files: list[int]) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    text = json.dumps(order).encode()
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))
    link.sendmsg([struct.pack("i", len(text))], [rights])
    link.sendall(text)
    return link


def _received(link: socket.socket, number: int) -> bytes:
    data = b""
    while len(data) < number:
        more = link.recv(number - len(data))
        assert more, "the warm process died"
        data += more
    return data


# In the warm process.


def serve(number: int) -> None:
    """Forks a program for each order until standard input ends."""
    _import_everything()
    assert _num_threads() == 1, "a fork of several threads is not safe"
    listener = socket.socket(fileno=number)
    ended, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    links: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, listener, ended], [], [])
        if ended in ready:
            ended.recv(4096)
            _bury(links)
        if listener in ready:
            link, _ = listener.accept()
            size, files, _, _ = socket.recv_fds(link, 4, 16)
            order = json.loads(_received(link, *struct.unpack("i", size)))
            for module in order.pop("imports", ()):
                import_module(module)
            child = os.fork()
            if child == 0:
                _become(**order, files=files)
            for file in files:
                os.close(file)
            link.sendall(struct.pack("i", child))
            links[child] = link
        if 0 in ready:
            for child in links:
                os.kill(child, signal.SIGKILL)
            return


def _bury(links: dict[int, socket.socket]) -> None:
    while links:
        child, status = os.waitpid(-1, os.WNOHANG)
        if not child:
            return
        with links.pop(child) as link, suppress(OSError):  # the process that asked may be gone
            link.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))


def _import_everything() -> None:
    import gc

    from quintain import Trainer
    from quintain.cli import app  # noqa: F401

    # Torch imports much of itself only when it first learns.
    Trainer("ppo", "CartPole-v1", num_lanes=1, num_steps=8, batch_size=8, num_epochs=1, writers=[]).train(8)
    gc.collect()
    gc.freeze()  # so that a child's collections copy no pages


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


# In the program.


def _become(
    words: list[str], folder: str, environment: dict[str, str], is_session: bool, numbers: list[int], files: list[int]
) -> None:
    """Goes on as the program, and ends with it."""
    code = 1
    try:
        _reset_signals()
        if is_session:
            os.setsid()
        _keep_only(numbers, files)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        paths = [path for path in environment.get("PYTHONPATH", "").split(":") if path]
        sys.path[:] = [folder, *paths, *(path for path in sys.path if path and path != str(ROOT))]
        _fork_what_it_starts()
        code = _run(words)
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as an interpreter does
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _keep_only(numbers: list[int], files: list[int]) -> None:
    """Gives files their numbers, and closes all others, as a new program does."""
    apart = [fcntl.fcntl(file, fcntl.F_DUPFD, 1000) for file in files]
    os.closerange(3, 1000)
    for number, file in zip(numbers, apart, strict=True):
        os.dup2(file, number)
    os.closerange(max(3, *numbers) + 1, 2000)


def _fork_what_it_starts() -> None:
    """Forks ranks, and the servers of workers and collectors, from this process as long as that is safe."""
    import multiprocessing.util

    from quintain.services.processes import supervisor

    spawn = multiprocessing.util.spawnv_passfds

    def spawned(path: bytes, words: list[bytes], files: list[int]) -> int:
        texts = [word.decode() if isinstance(word, bytes) else word for word in words]
        if _num_threads() > 1 or not any("spawn_main" in text for text in texts):
            return spawn(path, words, files)
        place = texts.index("-c")
        order = {"words": texts[place:], "folder": os.getcwd(), "environment": dict(os.environ), "is_session": False}
        kept = [0, 1, 2, *files]
        return _fork_here({**order, "numbers": kept}, kept)

    multiprocessing.util.spawnv_passfds = spawned
    supervisor.subprocess = types.SimpleNamespace(  # type: ignore[assignment]
        **{**vars(subprocess), "Popen": lambda *words, **options: _own_popen()(*words, **options)}
    )


class _Forked(_Popen):
    """A child of this process, not of the warm one."""

    def _fork(self, order: dict[str, Any], files: list[int]) -> None:
        self.pid = _fork_here(order, files)


def _own_popen() -> type[subprocess.Popen[Any]]:
    return _Forked if _num_threads() == 1 else subprocess.Popen


def _fork_here(order: dict[str, Any], files: list[int]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        import gc

        gc.freeze()
        # What this process registered is its own to end.
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        _become(**order, files=files)
    return child


def _run(words: list[str]) -> int:
    try:
        _execute(words)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        sys.stderr.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]  # there is one
        return 1
    return 0


def _execute(words: list[str]) -> None:
    import runpy

    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if words[0] == "-u":
        words = words[1:]
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
    kind, *rest = words
    if kind == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind in ("-c", "-"):
        sys.argv = [kind, *(rest[1:] if kind == "-c" else rest)]
        exec(compile(rest[0] if kind == "-c" else sys.stdin.read(), "<string>", "exec"), main.__dict__)
    else:
        assert not kind.startswith("-"), f"a warm program has no flag {kind}"
        sys.argv = words
        sys.path[0] = str(Path(kind).resolve().parent)
        runpy.run_path(kind, run_name="__main__")


def _pass_on() -> int:
    """Runs a program for a shell: it has the shell's streams, and its end is that of this process."""
    address, *words = sys.argv[1:]
    order = {"words": words, "folder": os.getcwd(), "environment": dict(os.environ), "is_session": False}
    link = _ask(address, {**order, "numbers": [0, 1, 2]}, [0, 1, 2])
    _received(link, 4)
    (code,) = struct.unpack("i", _received(link, 4))
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_pass_on())
