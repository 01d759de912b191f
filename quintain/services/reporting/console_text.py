"""Text of the console: bars and lines that fit the terminal, with replacements for terminals without Unicode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True)
class Glyphs:
    """The few characters beyond ASCII, with replacements for terminals without them."""

    dot: str
    plus_minus: str
    normal: str
    warning: str
    rule: str
    bar_done: str
    bar_head: str
    bar_rest: str
    levels: str
    """Characters of a sparkline, from low to high."""


UNICODE = Glyphs("·", "±", "✓", "▲", "─", "━", "╸", "─", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("|", "+/-", "ok", "!", "-", "=", ">", ".", "_.-=+*#@")


def progress_bar(fraction: float, width: int, glyphs: Glyphs) -> Text:
    """Draws a bar; the done and the remaining part differ in shape too, because colour may be off."""
    done = min(width, int(fraction * width))
    head = glyphs.bar_head if 0 < done < width else ""
    return Text.assemble(
        (glyphs.bar_done * (done - len(head)) + head, "cyan"), (glyphs.bar_rest * (width - done), "dim")
    )


def sparkline(values: Sequence[float], glyphs: Glyphs) -> str:
    """Draws values as one character each, from the lowest to the highest of them.

    Example:
        >>> sparkline([1.0, 2.0, 4.0, 8.0], UNICODE)
        '▁▂▄█'
    """
    low, high = min(values, default=0.0), max(values, default=0.0)
    top = len(glyphs.levels) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(glyphs.levels[round((value - low) * scale)] for value in values)


def flow(parts: Sequence[Text], *, gap: str, width: int, indent: str = "") -> list[Text]:
    """Sets parts side by side; starts a new, indented line before a part that would not fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (gap, "dim"), part)
        else:
            lines.append(Text.assemble(indent if lines else "", part))
    return lines
