"""Pages and the examples for extending import public names only: names in the `__all__` of their module."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks, pages

EXAMPLES = sorted((ROOT / "examples/extending").glob("*.py"))
PAGES = [page for page in pages() if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT)))
def test_imported_names_are_public(path: Path) -> None:
    texts = [block.text for block in blocks(path) if block.language == "python"] or [path.read_text()]
    for node in (node for text in texts for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            assert all(alias.name == "quintain" or alias.name.partition(".")[0] != "quintain" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "quintain":
            public = getattr(importlib.import_module(str(node.module)), "__all__", [])
            assert {alias.name for alias in node.names} <= set(public), node.module
