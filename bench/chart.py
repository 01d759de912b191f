"""Draws how many times faster quintain is than each peer, one panel per workload; needs matplotlib."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

import peers
from results import Results, best_of, quiet, ratios
from workloads import WORKLOADS

_COLUMNS = 3


def draw(results: Results, path: Path) -> bool:
    """Writes the picture; says whether there was anything to draw, and something to draw it with."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(work.title, found) for work in WORKLOADS.values() if (found := factors(results, work.name))]
    if not panels:
        return False
    num_rows = math.ceil(len(panels) / _COLUMNS)
    heights = [max(len(found) for _, found in panels[i : i + _COLUMNS]) for i in range(0, len(panels), _COLUMNS)]
    figure, axes = pyplot.subplots(
        num_rows,
        _COLUMNS,
        figsize=(15, sum(0.9 + 0.34 * height for height in heights)),
        gridspec_kw={"height_ratios": [height + 2 for height in heights]},
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, found) in zip(axes.flat, panels, strict=False):
        _panel(axis, title, found)
    for axis in list(axes.flat)[len(panels) :]:
        axis.axis("off")
    figure.suptitle("How many times faster quintain is (median and range over repetitions; the line is 1)")
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return True


def factors(results: Results, workload: str) -> dict[str, list[float]]:
    """Returns the ratios to each peer's best way of doing a workload, the hardest to beat first."""
    rows = quiet(results.of(workload))
    ours = best_of(rows, peers.OURS)
    found: dict[str, list[float]] = {}
    for peer in sorted({row["peer"] for row in rows} - {peers.OURS}):
        theirs = best_of(rows, peer)
        if ours is not None and theirs is not None and (each := ratios(rows, ours, theirs)):
            found[peer] = each
    return dict(sorted(found.items(), key=lambda item: median(item[1])))


def _panel(axis: Any, title: str, found: dict[str, list[float]]) -> None:
    places = range(len(found))
    middles = [median(values) for values in found.values()]
    spread = [
        [middle - min(values) for middle, values in zip(middles, found.values(), strict=True)],
        [max(values) - middle for middle, values in zip(middles, found.values(), strict=True)],
    ]
    colours = ["tab:gray" if name in peers.YARDSTICKS else "tab:blue" for name in found]
    axis.barh(places, middles, xerr=spread, color=colours, height=0.7, ecolor="black", capsize=2)
    axis.axvline(1.0, color="tab:red", linewidth=1)
    axis.set_yticks(places, list(found))
    axis.invert_yaxis()
    axis.set_xlim(0, 1.18 * max(1.0, *(max(values) for values in found.values())))
    for place, (middle, values) in enumerate(zip(middles, found.values(), strict=True)):
        axis.text(max(values), place, f" {middle:.1f} x", va="center", fontsize=8)
    axis.set_title("\n".join(_wrapped(title)), fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _wrapped(title: str, width: int = 52) -> list[str]:
    lines = [""]
    for word in title.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
