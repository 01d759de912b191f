"""What a process tree and the whole machine used, read from /proc; zero where a system has no such files.

Needs nothing but Python, because it runs inside every peer's interpreter.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/<pid>/stat after the name, which may contain anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(root: int) -> list[int]:
    """Returns a process and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
        except (OSError, IndexError):
            continue
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU seconds of processes and of those children that they have waited for."""
    total = 0
    for pid in pids:
        try:
            total += sum(int(ticks) for ticks in _stat(pid)[11:15])
        except (OSError, IndexError):
            continue
    return total / _TICKS


def peak_megabytes(pids: list[int]) -> float:
    """Returns the sum of what each process held at its own peak."""
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


def machine_cpu_seconds() -> float:
    """Returns what all processes used since boot."""
    try:
        with open("/proc/stat") as stat:
            user, nice, system, _idle, _wait, *interrupts = (int(x) for x in stat.readline().split()[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + sum(interrupts)) / _TICKS


def seconds_since_start() -> float:
    """Returns how long this process has existed, imports and all."""
    with open("/proc/uptime") as uptime:
        return float(uptime.read().split()[0]) - int(_stat(os.getpid())[19]) / _TICKS


def keep_to_cores(count: int) -> None:
    """Lets this process and all it will start run on so many cores, where a system can do that.

    Some libraries start threads of their own however few they are told to use.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-count:])


def end(pids: list[int]) -> None:
    """Ends processes that we started, at once."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_until_quiet(limit_cores: float, patience_seconds: float) -> float:
    """Waits until the machine is used by fewer cores than the limit, or patience ends; returns what it used last."""
    deadline = time.monotonic() + patience_seconds
    while True:
        busy, started = machine_cpu_seconds(), time.monotonic()
        time.sleep(0.5)
        cores = (machine_cpu_seconds() - busy) / (time.monotonic() - started)
        if cores < limit_cores or time.monotonic() > deadline:
            return cores
