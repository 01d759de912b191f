"""The script by which the nodes of a local cluster start a worker: it asks for a fork, or runs Ray's own script.

Ray starts an interpreter for it, so it imports only the standard library. It must not have the name of Ray's own
script, `setup_worker.py`, which Ray leaves out where a worker has no environment of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "forks"
"""Name of the socket at which `forks.py` listens, beside the folder that Ray fills."""
FORKED = b"f"
"""Its answer. It may end, or find that it must not fork, while requests wait."""


def main(words: list[str]) -> None:
    script = next(word for word in words if word.endswith("default_worker.py"))
    named = dict(word[2:].split("=", 1) for word in words if word.startswith("--") and "=" in word)
    # Variables and packages of an environment of its own must be there before anything is imported.
    if "serialized-runtime-env-context" not in named:
        options = [word for word in words[words.index(script) + 1 :] if not word.startswith("--language=")]
        request = {"arguments": [script, *options], "environment": dict(os.environ), "cwd": os.getcwd()}
        try:
            # Of all processes of a node, the system ends workers first when memory is short.
            with open("/proc/self/oom_score_adj") as score:
                request["oom_score_adj"] = score.read()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
                server.connect(os.path.join(os.path.dirname(named["temp-dir"]), SOCKET))
                text = json.dumps(request).encode()
                sent = socket.send_fds(server, [text], [0, 1, 2])
                server.sendall(text[sent:])
                server.shutdown(socket.SHUT_WR)
                if server.recv(len(FORKED)) == FORKED:
                    return
        except OSError:
            pass
    os.execv(sys.executable, [sys.executable, script.replace("default_worker", "setup_worker"), *words])


if __name__ == "__main__":
    main(sys.argv[1:])
