"""Every block that a page marks with `run` does what the page says.

A page's blocks run in order, in one empty directory. `file=NAME` writes a file, `python run` is a script of its own,
and `console run` is a dialogue: each line after `$ ` must succeed, and print the lines below it (`...` stands for any
text).
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import warm
from tests.docs.pages import ROOT, Block, blocks, pages

_RUNNABLE = {"run"}


def _is_tested(block: Block) -> bool:
    return block.mark in _RUNNABLE or block.mark.startswith("file=")


PAGES = [page for page in pages() if any(block.mark in _RUNNABLE for block in blocks(page))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_do_what_the_page_says(page: Path, tmp_path: Path) -> None:
    shell = _Shell(tmp_path)
    for block in filter(_is_tested, blocks(page)):
        if block.mark.startswith("file="):
            (shell.directory / block.mark.removeprefix("file=")).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            printed = shell.run(warm.command("-"), block.text)
            # Gymnasium warns of its own wrappers.
            assert not [line for line in printed.splitlines() if "Warning:" in line and "WARN:" not in line], printed
        else:
            _hold_dialogue(shell, block.text)


def test_every_mark_is_known() -> None:
    assert PAGES
    marks = {(page.name, block.mark) for page in pages() for block in blocks(page) if not _is_tested(block)}
    assert {mark for mark in marks if mark[1]} == set()


class _Shell:
    """Runs commands in a directory of its own, with `quintain` as a command."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "work"
        self.directory.mkdir()
        bin_directory = directory / "bin"
        bin_directory.mkdir()
        command = bin_directory / "quintain"
        command.write_text(f'#!/bin/sh\nexec {warm.command("-m", "quintain")} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{bin_directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }

    def run(self, command: str, given: str = "") -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=self.environment,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        return done.stdout


def _hold_dialogue(shell: _Shell, text: str) -> None:
    for turn in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *expected = turn.rstrip("\n").split("\n")
        printed = shell.run(command)
        for line in filter(None, expected):
            pattern = ".*".join(map(re.escape, line.split("...")))
            assert re.search(f"^{pattern}$", printed, re.MULTILINE), f"$ {command}\n{printed}\ndoes not say: {line}"
