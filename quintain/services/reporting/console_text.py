"""Text of the console: counts, durations and lines that are short, of constant width, and fit the terminal."""

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


UNICODE = Glyphs("·", "±", "✓", "▲", "─", "━", "╸", "─")
ASCII = Glyphs("|", "+/-", "ok", "!", "-", "=", ">", ".")


def grouped(number: int) -> str:
    """Writes a count with its digits in groups of three.

    Example:
        >>> grouped(100000)
        '100 000'
    """
    return f"{number:,}".replace(",", " ")


def short_count(number: float) -> str:
    """Writes a count in at most five characters.

    Example:
        >>> short_count(57344), short_count(1_250_000)
        ('57k', '1.2M')
    """
    for unit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            scaled = number / unit
            return f"{scaled:.0f}{suffix}" if scaled >= 10 else f"{scaled:.1f}{suffix}"
    return f"{number:.0f}"


def plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def measured(value: float) -> str:
    """Writes a return or a length with the digits that a reader can use.

    Example:
        >>> measured(412.63), measured(12345.6), measured(0.0123)
        ('412.6', '12346', '0.0123')
    """
    size = abs(value)
    if size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 1 or size == 0 else f"{value:.3g}"


def spread(value: float) -> str:
    """Writes a standard deviation, which needs fewer digits than a mean."""
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Writes a length of time with its two largest units.

    Example:
        >>> duration(31.4), duration(250), duration(7500)
        ('31 s', '4 min 10 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def progress_bar(fraction: float, width: int, glyphs: Glyphs) -> Text:
    """Draws a bar; the done and the remaining part differ in shape too, because colour may be off."""
    done = min(width, int(fraction * width))
    head = glyphs.bar_head if 0 < done < width else ""
    return Text.assemble(
        (glyphs.bar_done * (done - len(head)) + head, "cyan"), (glyphs.bar_rest * (width - done), "dim")
    )


def flow(parts: Sequence[Text], *, gap: str, width: int, indent: str = "") -> list[Text]:
    """Sets parts side by side; starts a new, indented line before a part that would not fit."""
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + len(gap) + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], (gap, "dim"), part)
        else:
            lines.append(Text.assemble(indent if lines else "", part))
    return lines
