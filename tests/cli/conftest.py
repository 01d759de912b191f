from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import app

FAST = ("num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=1", "budget.env_steps=96")


@dataclass(frozen=True)
class Answer:
    """What a command printed and returned."""

    exit_code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """Returns the error's line; there is exactly one, and nothing that only a developer can read."""
        (line,) = [line for line in self.err.splitlines() if line.startswith("error[")]
        assert re.match(r"error\[E\d{4}\]: \S", line)
        assert "Traceback" not in self.err + self.out
        assert "pydantic" not in line
        return line

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Answer]


@pytest.fixture
def quintain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs commands in this process, in a folder of their own."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Answer:
        capsys.readouterr()
        exit_code = app.main(list(words))
        printed = capsys.readouterr()
        return Answer(exit_code, printed.out, printed.err)

    return run


@pytest.fixture
def trained(quintain: Command, tmp_path: Path) -> Path:
    """A finished run called `a1` with checkpoints at 0, 32, 64 and 96 steps."""
    answer = quintain("train", "ppo", "CartPole-v1", *FAST, "checkpoint.every_updates=1", "--run-id", "a1", "--quiet")
    assert answer.exit_code == 0, answer.err
    return tmp_path / "runs" / "a1"


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Describes each file below a folder by time of change and contents."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }
