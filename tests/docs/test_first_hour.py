"""The example of the first hour runs from its beginning to its end."""

from __future__ import annotations

import json
import os
import re
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
    assert "Traceback" not in done.stdout
    [tuned] = {path.name for path in (tmp_path / "runs").iterdir()} - {"first", "fork", "stopped"}
    ends = {path.name: json.loads((path / "status.json").read_text()) for path in (tmp_path / "runs").iterdir()}
    assert {name: (end["state"], end["step"]) for name, end in ends.items()} == {
        "first": ("finished", 1536),
        "fork": ("finished", 256),
        "stopped": ("stopped", 256),
        tuned: ("finished", 2048),
    }
    assert (ends["stopped"]["reason"], ends["stopped"]["resumable"]) == ("SIGINT", True)
    rows = [json.loads(line)["step"] for line in (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert rows == list(range(128, 1537, 128))
    assert "forked from first@0000" in done.stdout
    assert "initialize_from: first@0000" in (tmp_path / "runs/fork/config.yaml").read_text()
    low, high = map(float, re.search(r"\((\d[\d.]*), (\d[\d.]*)\)", done.stdout).groups())  # type: ignore[union-attr]
    assert 5.0 < low <= high < 500.0
