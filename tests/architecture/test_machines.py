"""Nothing that is committed leads to a place of one machine: no link out of the tree, no absolute path of a user."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.architecture.source import ROOT

_OF_A_MACHINE = re.compile(r"(?<![\w.~}-])/(?:root|home|Users|work|tmp|mnt|scratch|var/folders)/[\w.-]+")
_ABOUT_PATHS = "tests/architecture/test_machines.py"
"""The one file whose examples are such paths."""


def tracked(root: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a checkout")
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_symlink() | (root / name).exists()]


def links_that_leave(root: Path, names: Iterable[str]) -> list[str]:
    """Returns the links that are absolute or lead out of the tree."""
    found = []
    for name in names:
        link = root / name
        if link.is_symlink():
            target = os.readlink(link)
            inside = os.path.normpath(link.parent / target)
            if os.path.isabs(target) or not Path(inside).is_relative_to(root):
                found.append(f"{name} -> {target}")
    return found


def paths_of_a_machine(root: Path, names: Iterable[str]) -> list[str]:
    """Returns the lines of text files that hold a path which only one machine has."""
    found = []
    for name in names:
        path = root / name
        if path.is_symlink() or not path.is_file() or name == _ABOUT_PATHS:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [
            f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
            for match in _OF_A_MACHINE.finditer(text)
        ]
    return found


def test_no_committed_link_leaves_the_tree() -> None:
    assert links_that_leave(ROOT, tracked(ROOT)) == []


def test_no_committed_text_holds_a_path_of_one_machine() -> None:
    assert paths_of_a_machine(ROOT, tracked(ROOT)) == []


@pytest.mark.parametrize(
    ("target", "leaves"), [("/root/.cache/thing", True), ("../../thing", True), ("../docs/thing", False)]
)
def test_links_are_told_apart(tmp_path: Path, target: str, leaves: bool) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "resources").symlink_to(target)
    assert bool(links_that_leave(tmp_path, ["bench/resources"])) == leaves


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("see /home/ann/runs", True),
        ('"/tmp/wt/cache/x.py"', True),
        ("cwd=/work/main", True),
        ("https://example.org/home/page", False),
        ("~/home/thing, {folder}/tmp/thing", False),
        ("/usr/bin/env python, /dev/null, /proc/self/fd", False),
    ],
)
def test_paths_are_told_apart(tmp_path: Path, text: str, is_found: bool) -> None:
    (tmp_path / "page.md").write_text(text)
    assert bool(paths_of_a_machine(tmp_path, ["page.md"])) == is_found
