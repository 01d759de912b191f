"""Reads the repository's Markdown pages: their paths, tables and fenced blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(?P<info>\S[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, and the words after it (`run`, or `file=NAME`)."""

    language: str
    mark: str
    text: str


def pages() -> list[Path]:
    """Returns every page that we write; results are written by the benchmarks."""
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*top, *sorted(path for path in DOCS.rglob("*.md") if "results" not in path.parts)]


def blocks(page: Path) -> list[Block]:
    """Returns the fenced blocks of a page, in order."""
    found = []
    for match in _FENCE.finditer(page.read_text(encoding="utf-8")):
        language, _, mark = match["info"].partition(" ")
        found.append(Block(language, mark, match["text"]))
    return found


def table(page: Path, heading: str) -> Iterator[list[str]]:
    """Yields the rows of the first table below a heading, as cells without backticks around them."""
    text = "\n" + page.read_text(encoding="utf-8")
    assert f"\n{heading}\n" in text, f"{page} has no heading {heading!r}"
    rows = []
    for line in text.split(f"\n{heading}\n", 1)[1].splitlines():
        if line.startswith("|"):
            rows.append(line)
        elif rows:
            break
    for row in rows[2:]:
        yield [cell.strip().removeprefix("`").removesuffix("`") for cell in row.strip("|").split("|")]
