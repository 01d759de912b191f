"""Tables in the pages agree with the source they describe."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest

from quintain.algorithms.settings import PPOSettings
from quintain.data import fields
from quintain.settings.base import Settings
from quintain.settings.run import CheckpointSettings, EnvWorkerSettings
from quintain.settings.spellings import ALIASES
from quintain.settings.yaml_text import read_scalar
from tests.docs.pages import DOCS, ROOT, table


def _declared_fields() -> dict[str, str]:
    """Returns what fields.py says below each name: shape, meaning and who writes it."""
    body = ast.parse((ROOT / "quintain/data/fields.py").read_text("utf-8")).body
    declared = {}
    for statement, below in pairwise(body):
        if isinstance(statement, ast.AnnAssign) and isinstance(below, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            assert isinstance(below.value, ast.Constant)
            name = getattr(fields, statement.target.id)
            # Beside names there are sets of declarations.
            if isinstance(name, str):
                declared[name] = str(below.value.value)
    return declared


def test_rollout_table_is_the_field_table() -> None:
    declared = {name: said for name, said in _declared_fields().items() if said.startswith("[N, T+1")}
    rows = {row[0]: row for row in table(DOCS / "concepts/rollout.md", "## Fields")}
    assert list(rows) == list(declared)
    for name, (_, shape, _dtype, writer, _meaning) in rows.items():
        assert declared[name].startswith(shape), name
        assert writer in declared[name], name


@pytest.mark.parametrize(
    ("page", "heading", "settings"),
    [
        ("concepts/algorithm.md", "## Settings and defaults", PPOSettings()),
        ("concepts/checkpoints.md", "## When a checkpoint is committed", CheckpointSettings()),
        ("concepts/workers.md", "# Environment workers", EnvWorkerSettings()),
    ],
)
def test_defaults_are_those_of_the_settings(page: str, heading: str, settings: Settings) -> None:
    defaults = settings.model_dump(mode="json", exclude={"type"})
    empty: dict[str, object] = {"[]": [], "{}": {}}
    listed = {row[0]: empty.get(row[1], read_scalar(row[1])) for row in table(DOCS / page, heading)}
    assert listed == defaults


def test_aliases_are_those_that_are_understood() -> None:
    listed = {alias: name for alias, name, _ in table(DOCS / "concepts/settings.md", "## Aliases")}
    assert listed == {alias: name for block in ALIASES.values() for alias, name in block.items()}


def test_every_promise_names_a_test_that_exists_and_what_it_does_not_cover() -> None:
    promises = list(table(ROOT / "README.md", "## What is promised"))
    assert len(promises) >= 13
    for promise, held_by, limits in promises:
        path = ROOT / held_by.strip("`")
        assert path.is_file(), f"{promise}: {held_by}"
        assert "def test_" in path.read_text("utf-8"), held_by
        assert len(limits) > 5, promise
