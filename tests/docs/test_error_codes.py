"""docs/errors.md lists every code that the product can print, and no other."""

from __future__ import annotations

import re

from quintain import errors
from quintain.cli.errors import EXIT_CODES
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
    classes = {name: getattr(errors, name).exit_code for name in vars(errors) if name.endswith("Error")}
    listed = {row[1]: int(row[2]) for row in table(DOCS / "errors.md", "## Errors")}
    assert {name: code for name, code in listed.items() if classes.get(name, code) != code} == {}


def test_exit_codes_are_those_of_the_command_line() -> None:
    listed = {int(row[0]) for row in table(DOCS / "errors.md", "## Exit codes")}
    assert listed == set(EXIT_CODES) | {143}
