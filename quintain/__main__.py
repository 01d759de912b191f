"""Runs the command line: `python -m quintain` and the `quintain` script."""

from __future__ import annotations

import sys

from quintain.cli.app import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
