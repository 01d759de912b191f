"""Forks workers of a local cluster from one process that has imported what rollout actors need.

A rollout actor that Ray starts imports torch and quintain for more than a second; a fork has them. Ray itself is
imported after the fork, because it reads the variables of its worker then. Forking is safe because this process has one
thread; if an import has started another, workers are started as Ray starts them.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from quintain.placements.ray.start_worker import FORKED
from quintain.services.processes.fork_server import end_with_parent, run_to_exit
from quintain.services.processes.messages import MAX_MESSAGE_BYTES, Assembler, receive

if TYPE_CHECKING:
    from quintain.typing import JsonObject


def serve(descriptor: int) -> None:
    """Forks a worker for each connection to a socket, until the driver closes its own or ends."""
    channel = socket.socket(fileno=descriptor)
    text, descriptors = receive(channel, Assembler())
    words = json.loads(text)
    listener = socket.socket(fileno=descriptors[0])
    for module in words["modules"]:
        import_module(module)
    if len(os.listdir("/proc/self/task")) > 1:
        listener.close()
        channel.recv(MAX_MESSAGE_BYTES)
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Objects of modules are never garbage; a collection in a child would copy their pages.
    gc.freeze()
    while True:
        ready, _, _ = select.select([channel, listener], [], [])
        if channel in ready:
            return
        connection, _ = listener.accept()
        # One that has ended needs no worker; one that hears nothing, as there is no room for a fork, starts its own.
        with connection, suppress(OSError, ValueError):
            _fork(connection, [listener, channel])


def _fork(connection: socket.socket, others: Sequence[socket.socket]) -> None:
    """Reads a request, forks a worker for it, and says so."""
    piece, streams, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 3)
    try:
        pieces = [piece]
        while pieces[-1]:
            pieces.append(connection.recv(MAX_MESSAGE_BYTES))
        request, parent = json.loads(b"".join(pieces)), os.getpid()
        if os.fork() == 0:
            run_to_exit(partial(_become_worker, request, streams, parent, [connection, *others]))
        connection.send(FORKED)
    finally:
        for stream in streams:
            os.close(stream)


def _become_worker(
    request: JsonObject, streams: Sequence[int], parent: int, inherited: Sequence[socket.socket]
) -> None:
    """Runs Ray's script of a worker as if an interpreter had been started for it."""
    for each in inherited:
        each.close()
    # The worker ends with the cluster, also where Ray would not notice.
    end_with_parent(parent)
    # Ray kills the group of a worker that has died, with all that the worker may have started.
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    faulthandler.unregister(signal.SIGUSR1)
    # Python's global random stream is another in each fork by itself.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    for target, source in enumerate(streams):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write(request["oom_score_adj"])
    sys.argv = request["arguments"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
