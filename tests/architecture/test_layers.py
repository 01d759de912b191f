"""Who may import whom: the layers of the architecture as one table, checked by reading the source.

A module may import from lower layers, or from its own where no cycle arises and the pair is not apart. Imports inside
functions and under TYPE_CHECKING count: knowing a name is knowing the part. They do not count as cycles, because they
do not run while modules are imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.source import files, modules, place, tree_of

LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "typing"}),
    frozenset({"core", "settings"}),
    frozenset({"compiled.runtime", "data", "events", "services"}),
    frozenset({"envs", "policies", "rewards"}),
    frozenset({"algorithms", "rollouts"}),
    frozenset({"compiled"}),
    frozenset({"trainers"}),
    frozenset({"placements"}),
    frozenset({"runs"}),
    frozenset({"", "__main__", "behaviors", "cli", "compat", "experiments", "online", "testing", "text"}),
)
"""The part of a module is the first name below quintain, or one of `INNER`; "" is the package itself."""

INNER = ("compiled.runtime",)
"""Rooms of a part that stand in a layer of their own: native environments compile kernels too."""

APART = (
    frozenset({"data", "services"}),
    frozenset({"envs", "policies"}),
    frozenset({"envs", "rewards"}),
    frozenset({"policies", "rewards"}),
    frozenset({"algorithms", "rollouts"}),
    frozenset({"compiled", "envs"}),
    frozenset({"compiled", "rollouts"}),
    frozenset({"compiled.runtime", "data"}),
    frozenset({"compiled.runtime", "policies"}),
    frozenset({"compiled.runtime", "algorithms"}),
    frozenset({"compiled.runtime", "rollouts"}),
)
"""Parts that must not know each other whatever their layers: acceleration is plugged into what knows no kernels."""

SANCTIONED = {
    ("quintain.rewards", "quintain.policies.networks"): "a signal with a network uses the policies' networks",
}
"""(importer or its package, imported) -> why this import against the rules is right."""

VOCABULARY_LIBRARIES = frozenset({"numpy", "pydantic", "pydantic_core", "yaml"})
EXTRAS = {
    "PIL": "quintain.services.reporting.video",
    "onnx": "quintain.policies.export",
    "onnxruntime": "quintain.policies.export",
    "onnxscript": "quintain.policies.export",
    "openai": "quintain.text.providers",
    "python_multipart": "quintain.text.server",
    "ray": "quintain.placements",
    "starlette": "quintain.text.server",
    "tensorboard": "quintain.services",
    "torchrl": "quintain.algorithms.torchrl",
    "transformers": "quintain.text.providers",
    "uvicorn": "quintain.cli.serve_text",
    "wandb": "quintain.services",
}
"""Optional libraries and the one place that may import each."""


class Import(NamedTuple):
    name: str
    node: ast.AST
    runs_at_import: bool


def part_of(module: str) -> str:
    name = module.partition(".")[2]
    return next((room for room in INNER if f"{name}.".startswith(f"{room}.")), name.partition(".")[0])


def layer_of(module: str) -> int:
    return next(number for number, parts in enumerate(LAYERS) if part_of(module) in parts)


def imports_of(path: Path) -> Iterator[Import]:
    yield from _imports(tree_of(path), runs_at_import=True)


def _imports(node: ast.AST, *, runs_at_import: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child, runs_at_import)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"relative import in line {child.lineno}"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                yield Import(inner if inner in modules() else str(child.module), child, runs_at_import)
        else:
            is_later = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_typing = isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
            yield from _imports(child, runs_at_import=runs_at_import and not is_later and not is_typing)


def own_imports() -> Iterator[tuple[str, Path, Import]]:
    for module, path in modules().items():
        for imported in imports_of(path):
            if imported.name.partition(".")[0] == "quintain":
                yield module, path, imported


def is_sanctioned(importer: str, imported: str) -> bool:
    return any(f"{importer}.".startswith(f"{who}.") and imported == what for who, what in SANCTIONED)


def violation(importer: str, imported: str) -> str | None:
    """Says what is wrong with an import, or nothing.

    >>> violation("quintain.data.rollout", "quintain.policies.base")
    'layer 2 imports layer 3'
    >>> violation("quintain.envs.gym.make", "quintain.policies.base")
    'envs and policies must not know each other'
    >>> violation("quintain.policies.base", "quintain.data.rollout")
    """
    if is_sanctioned(importer, imported):
        return None
    low, high = layer_of(imported), layer_of(importer)
    if low > high:
        return f"layer {high} imports layer {low}"
    if {part_of(importer), part_of(imported)} in APART:
        return f"{part_of(importer)} and {part_of(imported)} must not know each other"
    return None


def test_every_module_has_exactly_one_layer() -> None:
    for path in files():
        module = next(name for name, each in modules().items() if each == path)
        assert sum(part_of(module) in parts for parts in LAYERS) == 1, f"{module} stands in no layer, or in several"


def test_modules_import_downwards_only() -> None:
    found = [
        f"{place(path, imported.node)}: {module} imports {imported.name}: {what}"
        for module, path, imported in own_imports()
        if (what := violation(module, imported.name))
    ]
    assert not found, "\n".join(found)


def test_every_sanctioned_exception_is_still_needed() -> None:
    used = {(module, imported.name) for module, _, imported in own_imports()}
    for who, what in SANCTIONED:
        if what in modules() and part_of(who) != "rewards":
            assert any(f"{module}.".startswith(f"{who}.") and name == what for module, name in used), (who, what)


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for module, _, imported in own_imports():
        if imported.runs_at_import and imported.name != module:
            graph.setdefault(module, set()).add(imported.name)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circle of imports: {' -> '.join(error.args[1])}")


def test_the_vocabulary_needs_no_heavy_library() -> None:
    for module, path in modules().items():
        allowed = VOCABULARY_LIBRARIES | ({"torch"} if module == "quintain.core.process_group" else set())
        if layer_of(module) > 1:
            continue
        for imported in imports_of(path):
            library = imported.name.partition(".")[0]
            is_ours = library == "quintain" or library in sys.stdlib_module_names
            assert is_ours or library in allowed or (library == "torch" and not imported.runs_at_import), (
                f"{place(path, imported.node)}: layer {layer_of(module)} imports {library}"
            )


def test_optional_libraries_are_imported_in_one_place_and_only_when_used() -> None:
    for module, path in modules().items():
        for imported in imports_of(path):
            home = EXTRAS.get(imported.name.partition(".")[0])
            if home is not None:
                assert f"{module}.".startswith(f"{home}."), f"{place(path, imported.node)}: belongs in {home}"
                # Only the command serve-text imports that module.
                is_late = module == "quintain.text.server.app" or not imported.runs_at_import
                assert is_late, f"{place(path, imported.node)}: import it where it is used"


def test_the_loop_starts_no_threads_and_no_processes() -> None:
    for module, path in modules().items():
        if part_of(module) == "trainers":
            libraries = {imported.name.partition(".")[0] for imported in imports_of(path)}
            assert not libraries & {"ray", "threading", "multiprocessing", "concurrent", "subprocess", "asyncio"}, path


@pytest.mark.parametrize(
    ("importer", "imported", "what"),
    [
        ("quintain.core.rng", "quintain.data.spec", "layer 1 imports layer 2"),
        ("quintain.rollouts.store", "quintain.algorithms.base", "rollouts and algorithms must not know each other"),
        ("quintain.services.reporting.stats", "quintain.data.fields", "services and data must not know each other"),
        ("quintain.trainers.events", "quintain.runs.slots", "layer 6 imports layer 8"),
        ("quintain.policies.base", "quintain.compiled.acting", "layer 3 imports layer 5"),
        (
            "quintain.algorithms.optimizer",
            "quintain.compiled.runtime.kernel",
            "algorithms and compiled.runtime must not know each other",
        ),
        ("quintain.envs.native.task", "quintain.compiled.runtime.kernel", None),
        ("quintain.rewards.rnd", "quintain.policies.networks", None),
        ("quintain.rewards.rnd", "quintain.policies.base", "rewards and policies must not know each other"),
    ],
)
def test_the_check_itself_tells_right_from_wrong(importer: str, imported: str, what: str | None) -> None:
    assert violation(importer, imported) == what
