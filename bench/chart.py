"""Draws how many times faster quintain is than each peer, a panel per workload, and how it grows; needs matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import peers
from contestants import LOCKSTEP, ONE_BEHIND
from results import Results, best_of, contestant_of, newest_set, quiet, ratios, score
from workloads import GROWTH_LANES, WORKLOADS, Workload

_COLUMNS = 3
_MIN_SLOTS = 4
_GROWTH = "growth"

Panel = tuple[int, Callable[[Any, int], None]]
"""How many bars it has, and what draws it on an axis with room for so many."""


def draw(results: Results, path: Path) -> bool:
    """Writes the picture; says whether there was anything to draw, and something to draw it with."""
    try:
        import matplotlib
    except ImportError:
        return False
    panels = _panels(results)
    if not panels:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [panels[i : i + _COLUMNS] for i in range(0, len(panels), _COLUMNS)]
    slots = [max(_MIN_SLOTS, *(size for size, _ in row)) for row in rows]
    figure, axes = pyplot.subplots(
        len(rows),
        _COLUMNS,
        figsize=(15, 0.6 + sum(0.9 + 0.3 * count for count in slots)),
        gridspec_kw={"height_ratios": [count + 2 for count in slots]},
        squeeze=False,
        layout="constrained",
    )
    for row, count, places in zip(rows, slots, axes, strict=True):
        for (_, paint), axis in zip(row, places, strict=False):
            paint(axis, count)
        for axis in places[len(row) :]:
            axis.axis("off")
    figure.suptitle(
        f"How many times as fast quintain is, {LOCKSTEP} unless it says otherwise: median and range over rounds of one "
        "commit; the line is 1"
    )
    figure.savefig(path, dpi=100)
    pyplot.close(figure)
    return True


def factors(results: Results, work: Workload, *, is_behind: bool = False) -> dict[str, list[float]]:
    """Returns the ratios to each peer's best way of doing a workload, the hardest to beat first."""
    rows = quiet(results.of(work.name))
    found: dict[str, list[float]] = {}
    for peer in sorted({row["peer"] for row in rows} - {peers.OURS}):
        counted = newest_set(rows, peer, work.enough_rounds)
        ours, theirs = best_of(counted, peers.OURS, is_behind=is_behind), best_of(counted, peer)
        if ours is None or theirs is None:
            continue
        # A goal that the peer never reached has no length that could be drawn.
        if each := [ratio for ratio in ratios(counted, ours, theirs) if math.isfinite(ratio)]:
            found[peer] = each
    return dict(sorted(found.items(), key=lambda item: median(item[1])))


def _panels(results: Results) -> list[Panel]:
    compared = [
        (len(found), partial(_bars, f"{work.title}{f'; quintain {ONE_BEHIND}' if is_behind else ''}", found))
        for work in WORKLOADS.values()
        for is_behind in (False, True)
        if not work.name.startswith(_GROWTH) and (found := factors(results, work, is_behind=is_behind))
    ]
    costs = {peer: found for peer in (peers.OURS, "sb3") if len(found := step_costs(results, peer)) > 1}
    long_runs = quiet(results.of("growth_length"))
    grown: list[Panel] = []
    if costs:
        grown.append((_MIN_SLOTS, partial(_cost_lines, costs)))
    if long_runs:
        grown.append((_MIN_SLOTS, partial(_pace_line, long_runs[-1]["parts"])))
    return [*compared, *grown]


def step_costs(results: Results, peer: str) -> dict[int, float]:
    """Returns what a step costs a peer with each number of lanes, in microseconds."""
    costs = {}
    for lanes in GROWTH_LANES:
        work = WORKLOADS[f"growth_lanes_{lanes}"]
        rows = newest_set(quiet(results.of(work.name)), peer, work.enough_rounds)
        if best := best_of(rows, peer):
            costs[lanes] = 1e6 / median(score(row) for row in rows if contestant_of(row) == best)
    return costs


def _bars(title: str, found: dict[str, list[float]], axis: Any, num_slots: int) -> None:
    places = range(len(found))
    middles = [median(values) for values in found.values()]
    pairs = list(zip(middles, found.values(), strict=True))
    spread = [[middle - min(values) for middle, values in pairs], [max(values) - middle for middle, values in pairs]]
    colours = ["tab:gray" if name in peers.YARDSTICKS else "tab:blue" for name in found]
    axis.barh(places, middles, xerr=spread, color=colours, height=0.7, ecolor="black", capsize=2)
    axis.axvline(1.0, color="tab:red", linewidth=1)
    axis.set_yticks(places, list(found))
    # Room for as many bars as the neighbours have, so that all are equally thick.
    axis.set_ylim(num_slots - 0.5, -0.5)
    axis.set_xlim(0, 1.18 * max(1.0, *(max(values) for values in found.values())))
    for place, (middle, values) in enumerate(pairs):
        axis.text(max(values), place, f" {middle:.1f} x", va="center", fontsize=8)
    _finish(axis, title)


def _cost_lines(costs: dict[str, dict[int, float]], axis: Any, num_slots: int) -> None:
    for peer, found in costs.items():
        axis.loglog(list(found), list(found.values()), marker="o", label=peer)
    axis.set_xticks(list(GROWTH_LANES), [str(lanes) for lanes in GROWTH_LANES])
    axis.minorticks_off()
    axis.set_xlabel("lanes")
    axis.set_ylabel("µs per step")
    axis.legend(frameon=False)
    _finish(axis, "growth: what a step of PPO on CartPole-v1 costs")


def _pace_line(parts: Sequence[float], axis: Any, num_slots: int) -> None:
    axis.plot(range(1, len(parts) + 1), parts, marker="o")
    axis.set_ylim(0, 1.2 * max(parts))
    axis.set_xlabel("tenth of the run")
    axis.set_ylabel("steps/s")
    _finish(axis, "growth: pace over 10 million steps")


def _finish(axis: Any, title: str) -> None:
    axis.set_title("\n".join(_wrapped(title)), fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)


def _wrapped(title: str, width: int = 52) -> list[str]:
    lines = [""]
    for word in title.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
