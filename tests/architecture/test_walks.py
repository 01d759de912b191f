"""The walks of docs/concepts/walks.md: counts that may fall and never rise, and functions that exist."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.architecture.source import PACKAGE, ROOT, tree_of
from tests.docs.pages import DOCS, table

PAGE = DOCS / "concepts/walks.md"
BOUNDS = {
    # In this order: the first walk may have to compile what the second only loads.
    "checkpoint": {"functions": 152, "files": 47},
    "first_step": {"functions": 750, "files": 143, "modules": 280},
}
"""A count may fall, never rise."""
REWARD_WALKS = ("### Lanes", "### Agents", "### Hooks")


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    counts = {}
    for walk in BOUNDS:
        command = [sys.executable, "-m", "tests.architecture.walks", walk]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        place = tmp_path_factory.mktemp(walk)
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, timeout=120, check=True)
        counts[walk] = json.loads(done.stdout.splitlines()[-1])
    return counts


@pytest.mark.slow
@pytest.mark.parametrize("walk", BOUNDS)
def test_a_walk_does_not_become_longer(walk: str, counted: dict[str, dict[str, Any]]) -> None:
    assert {name: counted[walk][name] for name, bound in BOUNDS[walk].items() if counted[walk][name] > bound} == {}


@pytest.mark.parametrize("heading", REWARD_WALKS)
def test_every_function_on_the_way_of_a_reward_exists(heading: str) -> None:
    rows = [(function.strip("`"), file.strip("`")) for _, function, file, _ in table(PAGE, heading)]
    missing = [row for row in rows if row[0] not in _qualified_names(tree_of(PACKAGE / row[1]))]
    assert missing == []
    assert f"{len(rows)} functions in {len({file for _, file in rows})} files" in PAGE.read_text("utf-8")


def _qualified_names(tree: ast.AST, scope: str = "") -> set[str]:
    found = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found |= {scope + node.name} | _qualified_names(node, f"{scope}{node.name}.")
    return found
