"""Figures of the package's layout as ratchets: a figure may fall, never rise. Lower the bound here when it does.

A bound is a hint where to look. Inlining for the sake of a count, or renaming to escape one, makes the package worse.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest

from tests.architecture.source import functions, modules, tree_of
from tests.architecture.test_layers import part_of

AT_ROOT = frozenset({"__init__", "__main__", "errors", "typing", "events"})
FACADES = frozenset({"behaviors", "compat", "experiments", "online"})
"""Parts whose classes are called as users of another system know them."""
PEOPLE = re.compile(r"\b(nobody|somebody|whoever|everybody|anybody)\b", re.IGNORECASE)
DIALECT = re.compile(r"\b(numbers|choices)\b", re.IGNORECASE)
TAKES_RUN_FILE = re.compile(r":\s*\"?RunFile\b|RunFile,")

BOUNDS = {
    "modules at the root": 0,
    "largest cycle of imports": 0,
    "largest cycle with imports for typing": 3,
    "imports only inside functions": 20,
    "modules outside settings, runs and cli that name a RunFile": 0,
    "functions per 1,000 lines": 78,
    "short private functions with one caller": 186,
    "Any": 408,
    "getattr on settings": 0,
    "public classes defined more than once": 15,
    "of these outside the facades": 3,
    "people in docstrings": 0,
    "numbers and choices in docstrings": 10,
}


@cache
def edges() -> dict[tuple[str, str], set[str]]:
    """Returns the kinds of import ("top", "function", "typing") between each two modules."""
    found: dict[tuple[str, str], set[str]] = {}
    for module, path in modules().items():
        for name, kind in _imports(tree_of(path), "top"):
            if name in modules() and name != module:
                found.setdefault((module, name), set()).add(kind)
    return found


def _imports(node: ast.AST, kind: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, kind) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield (inner if inner in modules() else str(child.module)), kind
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, "typing")
        else:
            is_later = kind == "top" and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports(child, "function" if is_later else kind)


def largest_cycle(pairs: Iterator[tuple[str, str]]) -> int:
    """Returns the size of the largest set of modules that all reach each other; 0 if there is none.

    >>> largest_cycle(iter([("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]))
    3
    """
    graph: dict[str, set[str]] = {}
    for importer, imported in pairs:
        graph.setdefault(importer, set()).add(imported)
    reached = {name: _reachable(graph, name) for name in graph}
    sizes = [sum(name in reached.get(other, ()) for other in reached[name]) for name in graph if name in reached[name]]
    return max(sizes, default=0)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


@cache
def figures() -> dict[str, int]:
    lines = num_functions = 0
    words, calls, classes, own_classes = "", Counter[str](), Counter[str](), Counter[str]()
    short: Counter[str] = Counter()
    nodes: Counter[str] = Counter()
    for module, path in modules().items():
        tree, text = tree_of(path), path.read_text()
        lines += text.count("\n")
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words += f"{ast.get_docstring(node) or ''}\n"
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
                own_classes[node.name] += part_of(module) not in FACADES
            if isinstance(node, ast.Name) and node.id == "Any":
                nodes["Any"] += 1
            if isinstance(node, ast.Call):
                called = node.func
                calls[called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")] += 1
                if getattr(called, "id", "") == "getattr" and "settings" in ast.unparse(node.args[0]):
                    nodes["getattr"] += 1
        for function in functions(tree):
            num_functions += 1
            is_private = function.name.startswith("_") and not function.name.startswith("__")
            if is_private and (function.end_lineno or 0) - function.lineno < 8:
                short[function.name] += 1
        if part_of(module) not in {"settings", "runs", "cli"} and TAKES_RUN_FILE.search(text):
            nodes["RunFile"] += 1
    own = edges()
    return {
        "modules at the root": sum(m.count(".") == 1 and p.stem not in AT_ROOT for m, p in modules().items()),
        "largest cycle of imports": largest_cycle(pair for pair, kinds in own.items() if kinds != {"typing"}),
        "largest cycle with imports for typing": largest_cycle(iter(own)),
        "imports only inside functions": sum(kinds == {"function"} for kinds in own.values()),
        "modules outside settings, runs and cli that name a RunFile": nodes["RunFile"],
        "functions per 1,000 lines": round(1000 * num_functions / lines),
        "short private functions with one caller": sum(count for name, count in short.items() if calls[name] == 1),
        "Any": nodes["Any"],
        "getattr on settings": nodes["getattr"],
        "public classes defined more than once": sum(count > 1 for count in classes.values()),
        "of these outside the facades": sum(count > 1 for count in own_classes.values()),
        "people in docstrings": len(PEOPLE.findall(words)),
        "numbers and choices in docstrings": len(DIALECT.findall(words)),
    }


@pytest.mark.parametrize("figure", BOUNDS)
def test_a_figure_does_not_rise(figure: str) -> None:
    assert figures()[figure] <= BOUNDS[figure]
