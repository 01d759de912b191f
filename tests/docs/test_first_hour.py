"""The example of the first hour runs from its beginning to its end."""

from __future__ import annotations

import os
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import warm
from tests.docs.pages import ROOT


@pytest.mark.slow
@pytest.mark.skipif(find_spec("minigrid") is None, reason="its last line needs MiniGrid")
def test_the_first_hour_runs(tmp_path: Path) -> None:
    program = shlex.quote(str(ROOT / "examples/first_hour.py"))
    done = subprocess.run(
        ["bash", "-c", f"{warm.command('-')} < {program}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "internal error" not in done.stdout
    assert {path.name for path in (tmp_path / "runs").iterdir()} >= {"first", "fork", "stopped"}
