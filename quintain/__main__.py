"""Runs the command line: `python -m quintain` and the `quintain` script."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; Ctrl-C is quiet from the first moment on, also while everything is being imported."""
    signal.signal(signal.SIGINT, _leave)
    # The first to be registered is the last to be called: after it, Python would end as one killed by the signal.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    exit_code: int = importlib.import_module("quintain.cli.app").main(argv)
    # Nothing is left to interrupt but the end of the interpreter.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(exit_code))
    return exit_code


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"stopped by Ctrl-C\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
