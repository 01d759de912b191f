"""docs/errors.md lists every code that the product can print, and no other."""

from __future__ import annotations

import re

from quintain import errors
from quintain.cli.errors import EXIT_CODES
from quintain.errors import QuintainError
from tests.docs.pages import DOCS, ROOT, table

_CODE = re.compile(r"\b[EW]0\d{3}\b")


def test_every_code_in_the_source_is_listed() -> None:
    source = {code for path in (ROOT / "quintain").rglob("*.py") for code in _CODE.findall(path.read_text("utf-8"))}
    listed = {row[0] for heading in ("## Errors", "## Warnings") for row in table(DOCS / "errors.md", heading)}
    # A full disk is a warning at first, with the number of the error that it becomes: E0801 is W0801 then.
    derived = {code.replace("E", "W") for code in source if code.startswith("E08")}
    assert source - listed == set()
    assert listed - source - derived == set()


def test_listed_exit_codes_are_those_of_the_classes() -> None:
    rows = list(table(DOCS / "errors.md", "## Errors"))
    assert [row[:3] for row in rows if int(row[2]) != getattr(errors, row[1]).exit_code] == []
    # Each class is listed at least with the code it has by default, beside its own name.
    tree = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, QuintainError)]
    assert {(found.default_code, found.__name__) for found in tree} <= {(row[0], row[1]) for row in rows}


def test_exit_codes_are_those_of_the_command_line() -> None:
    listed = {int(row[0]) for row in table(DOCS / "errors.md", "## Exit codes")}
    assert listed == set(EXIT_CODES) | {129, 143}
