"""Runs programs that are not trusted: the main script of a process of its own, started by `code_sandbox`.

Reads one JSON line {"programs": [...], "inputs": [...], limits}, and forks for each program a process that may compute
and write its result, and nothing else: no new file, socket or process (seccomp on Linux, and limits everywhere), a
limit of memory and processor time, and a deadline. Imports only the standard library.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import platform
import resource
import select
import signal
import struct
import sys
import time
from contextlib import suppress

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_ALLOW, _EPERM, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
_MACHINES = {
    # Number of the machine for audits, then read, write, lseek, mmap, mprotect, munmap, brk, rt_sigaction,
    # rt_sigprocmask, rt_sigreturn, mremap, madvise, getpid, exit, futex, clock_gettime, exit_group, getrandom.
    "x86_64": (0xC000003E, (0, 1, 8, 9, 10, 11, 12, 13, 14, 15, 25, 28, 39, 60, 202, 228, 231, 318)),
    "aarch64": (0xC00000B7, (63, 64, 62, 222, 226, 215, 214, 134, 135, 139, 216, 233, 172, 93, 98, 113, 94, 278)),
}
_MAX_TEXT = 1000


def main() -> None:
    """Answers each program with one JSON line, in order."""
    order = json.loads(sys.stdin.readline())
    for program in order["programs"]:
        answer = _run_apart(program, order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _run_apart(program: str, order: dict[str, object]) -> dict[str, object]:
    """Runs one program in a forked process; returns its outputs, or how it ended."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            os.setpgid(0, 0)
            text = _compute(program, order, writer)
            os.write(writer, text)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    limit, deadline = int(str(order["max_output_bytes"])), time.monotonic() + float(str(order["seconds"]))
    text, is_late = b"", False
    while len(text) <= limit:
        remaining = deadline - time.monotonic()
        is_late = remaining <= 0 or not select.select([reader], [], [], remaining)[0]
        if is_late:
            break
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        text += piece
    with suppress(OSError):
        os.killpg(pid, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    if is_late:
        return {"end": "deadline"}
    if len(text) > limit or status != 0:
        cause = -os.waitstatus_to_exitcode(status)
        return {"end": "deadline" if cause == signal.SIGXCPU else "killed"}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # a program may have written it
        return {"end": "killed"}
    return found if isinstance(found, dict) else {"end": "killed"}


def _compute(program: str, order: dict[str, object], writer: int) -> bytes:
    """Defines the program's f and calls it with every input, after all rights are given up."""
    _give_up_rights(order, writer)
    names: dict[str, object] = {"__name__": "program"}
    outputs: list[object] = []
    try:
        exec(program, names)
        function = names["f"]
        for each in order["inputs"]:  # type: ignore[attr-defined]
            value = function(each)  # type: ignore[operator]
            # Types count: True is not 1.
            outputs.append([type(value).__name__, repr(value)[:_MAX_TEXT]])
    except BaseException as error:
        return json.dumps({"end": "raised", "error": type(error).__name__}).encode()
    return json.dumps({"end": "returned", "outputs": outputs}).encode()


def _give_up_rights(order: dict[str, object], writer: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for target in (0, 1, 2):
        os.dup2(nothing, target)
    os.closerange(3, writer)
    os.closerange(writer + 1, 256)
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(), _Nowhere(), _Nowhere()
    memory, seconds = int(str(order["max_memory_bytes"])), int(str(order["cpu_seconds"]))
    limits = (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        # No descriptor beyond these: no file, no socket, no pipe.
        (resource.RLIMIT_NOFILE, 0),
    )
    for number, limit in limits:
        resource.setrlimit(number, (limit, limit))
    # SIGXCPU at the first limit, SIGKILL at the second.
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    machine = _MACHINES.get(platform.machine()) if sys.platform == "linux" else None
    if machine is not None:
        _filter_system_calls(*machine)


class _Nowhere(io.TextIOBase):
    """Swallows whatever a program prints, at no cost of memory."""

    def write(self, text: str) -> int:
        return len(text)


def _filter_system_calls(audit_number: int, allowed: tuple[int, ...]) -> None:
    """Lets the kernel refuse (EPERM) every system call but those that computing needs."""

    def rule(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, answer = 0x20, 0x15, 0x06
    rules = [rule(load, 0, 0, 4), rule(equal, 1, 0, audit_number), rule(answer, 0, 0, _KILL), rule(load, 0, 0, 0)]
    for place, number in enumerate(allowed):
        rules.append(rule(equal, len(allowed) - place, 0, number))
    rules += [rule(answer, 0, 0, _EPERM), rule(answer, 0, 0, _ALLOW)]
    text = ctypes.create_string_buffer(b"".join(rules))

    class FilterProgram(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("rules", ctypes.c_void_p))

    libc = ctypes.CDLL(None, use_errno=True)
    program = FilterProgram(len(rules), ctypes.addressof(text))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
        _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0
    ):
        os._exit(3)


if __name__ == "__main__":
    main()
