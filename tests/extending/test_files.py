"""The examples of extending are short files of public names, and stand on their pages as they are."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "most_lines", "page"),
    [
        ("td3", 90, "add-an-off-policy-algorithm"),
        ("rnd", 25, "add-a-reward-signal"),
        ("bc", 25, "add-an-auxiliary-loss"),
        ("dagger", 30, None),
    ],
)
def test_an_example_is_short_and_imports_public_names_only(name: str, most_lines: int, page: str | None) -> None:
    text = (ROOT / f"examples/extending/{name}.py").read_text()
    # Every line that is not empty counts: imports, docstrings and descriptions of settings too.
    assert sum(bool(line.strip()) for line in text.splitlines()) <= most_lines
    assert page is None or text in (ROOT / f"docs/howto/{page}.md").read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("quintain"):
            assert {alias.name for alias in node.names} <= set(importlib.import_module(str(node.module)).__all__)
        else:
            assert not isinstance(node, ast.Import | ast.ImportFrom) or "quintain" not in ast.unparse(node)
