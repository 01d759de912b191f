"""Code named in settings: which texts name code, which of it may be imported, and from where.

Every import of a user's `module:Name` goes through `registry.import_part`, which checks here. While settings of an
unknown origin are in use, only names that the user permitted are imported, for any setting. Code inside a run directory
is never imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from quintain.errors import CheckpointError

CODE_KEYS = ("type", "id")
"""Keys whose value names code if it contains a colon; other texts must look like module:Name."""
REFERENCE_KEYS = ("api_key",)
"""Keys whose value says where a secret is (env:NAME); nothing imports it."""

# No spaces, no slash or backslash after the colon (addresses, drives), no digit (devices, ports, times).
_NAMES_CODE = re.compile(r"[^\s:/\\]+:[^\s:/\\\d][^\s:\\]*")
# Environments that only simulate, and classes of parts. Not all of quintain: what starts processes would, called with
# arguments of a stranger's choice, run any code.
_SHIPPED = re.compile(
    r"quintain\.envs\.(?:shipped_events|gym\.atari|agents\.(?:spread|(?:\w+_)?tasks)):[A-Za-z]\w*"
    r"|quintain\.(?:algorithms|policies|rewards|rollouts|testing|trainers)(?:\.\w+)+:[A-Z]\w*"
)
# As services/files/run_directory.py calls them.
_FILES_OF_RUN = ("config.yaml", "checkpoints")
_TRACES_OF_RUN = ("status.json", "LOCK")

imported: set[str] = set()
"""The modules that were imported because settings name a part of them."""

# The permitted names of every set of foreign settings that is in use.
_limits: list[Collection[str]] = []


def code_names(tree: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yields the paths at which settings name code, and the names; built-in parts are not listed.

    >>> [name for _, name in code_names({"id": "gusts:Gusts", "signals": {"mine:Bonus": {}}, "device": "cuda:0"})]
    ['gusts:Gusts', 'mine:Bonus']
    >>> list(code_names({"api_key": "env:OPENAI_API_KEY"}))
    []
    """
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    for step, item in items:
        below = (*path, step)
        if isinstance(step, str) and ":" in step and not _is_shipped(step):
            yield below, step
        if isinstance(item, str) and step not in REFERENCE_KEYS:
            is_name = ":" in item if step in CODE_KEYS else _NAMES_CODE.fullmatch(item) is not None
            if is_name and not _is_shipped(item):
                yield below, item
        elif not isinstance(item, str):
            yield from code_names(item, below)


@contextmanager
def importing_only(permitted: Collection[str] | None) -> Iterator[None]:
    """Limits imports to these names until the end of the block, in all threads; None sets no limit."""
    limit_imports(permitted)
    try:
        yield
    finally:
        # By identity: blocks of several runs may end in any order, and equal limits are not the same one.
        index = next((index for index, limit in enumerate(_limits) if limit is permitted), None)
        if index is not None:
            del _limits[index]


def limit_imports(permitted: Collection[str] | None) -> None:
    """Limits imports to these names until the end of the enclosing `ending_limits`."""
    if permitted is not None:
        _limits.append(permitted)


@contextmanager
def ending_limits() -> Iterator[None]:
    """Ends the limits that were set within the block, or within the decorated function."""
    before = list(_limits)
    try:
        yield
    finally:
        _limits[:] = before


def require_permitted(name: str) -> None:
    """Refuses a name that comes from settings of an unknown origin and that the user did not permit."""
    if not _is_shipped(name) and any(name not in limit for limit in _limits):
        raise CheckpointError(
            f'"{name}" would be imported for a run that is not one of yours. If you trust it: --allow {name}',
            code="E0407",
        )


def search(folder: str) -> None:
    """Adds a folder to the import path, last, so that no file in it takes the place of an installed module."""
    if folder not in sys.path:
        sys.path.append(folder)


def import_module(module: str) -> ModuleType:
    """Imports a module from outside of runs; the current directory is on the import path."""
    search(os.getcwd())
    imported.add(module)
    steps = module.split(".")
    # Package by package: an import of the whole would run the code of packages on the way before anything is known.
    for count in range(1, len(steps)):
        _import_from_outside_runs(".".join(steps[:count]))
    return _import_from_outside_runs(".".join(steps))


def require_defined_there(name: str, part: object) -> None:
    """Refuses names that a module of quintain only imports, such as a function of the standard library."""
    if _limits and _is_shipped(name) and getattr(part, "__module__", None) != name.partition(":")[0]:
        raise CheckpointError(
            f'"{name}" is not a part of quintain, and would be used for a run that is not one of yours. Expected the '
            f"module that defines it",
            code="E0407",
        )


def _is_shipped(name: str) -> bool:
    return _SHIPPED.fullmatch(name) is not None


def _import_from_outside_runs(module: str) -> ModuleType:
    if module not in sys.modules:
        spec = importlib.util.find_spec(module)
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
        for place in filter(None, places):
            if (run := _run_around(Path(place))) is not None:
                raise CheckpointError(
                    f"module {module} lies inside the run directory {run}, and code of a run is never imported. If you "
                    f"trust it, move it out of the run",
                    code="E0407",
                )
    return importlib.import_module(module)


def _run_around(place: Path) -> Path | None:
    """Returns the run directory that contains a file or folder, if any."""
    resolved = place.resolve()
    for folder in (resolved, *resolved.parents):
        has_files = all((folder / name).exists() for name in _FILES_OF_RUN)
        if has_files and any((folder / name).exists() for name in _TRACES_OF_RUN):
            return folder
    return None
