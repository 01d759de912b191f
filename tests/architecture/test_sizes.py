"""Sizes beyond which a file or a function is probably two. Orientation, so the limits are generous."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.architecture.source import files, functions, place, tree_of

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 7
FORBIDDEN_NAMES = frozenset({"utils", "util", "common", "helpers", "misc"})


@pytest.mark.parametrize("path", files(), ids=lambda path: "/".join(path.parts[-2:]))
def test_files_and_functions_stay_readable(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_FILE_LINES, path
    for function in functions(tree_of(path)):
        assert function.end_lineno is not None
        length = function.end_lineno - function.lineno + 1
        assert length <= MAX_FUNCTION_LINES, f"{place(path, function)}: {function.name} has {length} lines"
        positional = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args) if arg.arg != "self"]
        # A command line's function has one parameter for each option; typer reads them by name.
        if "cli" not in path.parts:
            assert len(positional) <= MAX_POSITIONAL, f"{place(path, function)}: {function.name} takes {positional}"


@pytest.mark.parametrize("path", files(), ids=lambda path: "/".join(path.parts[-2:]))
def test_modules_have_names_that_say_something_and_a_first_sentence(path: Path) -> None:
    # Paths below compat/ are those of another system.
    is_compat = "compat" in path.parts
    assert is_compat or not FORBIDDEN_NAMES & {part.removesuffix(".py") for part in path.parts[-3:]}
    docstring = ast.get_docstring(tree_of(path))
    assert docstring, f"{path} does not say what it is for"
    assert docstring.split("\n\n")[0].rstrip().endswith((".", ":")), f"{path}: the first paragraph is not a sentence"
