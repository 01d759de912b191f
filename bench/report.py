"""Writes what was measured: docs/results/bench.md and a chart, from the rows of a results file.

Runs beside other load are left out for every side alike, and a ratio compares two runs of the same repetition.
"""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import chart
import environments
import peers
from contestants import Contestant
from results import QUIET_CORES, Results, Row, best_of, contestant_of, quiet, ratios, score
from workloads import WORKLOADS, Claim, Workload

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
EVERY_PEER = "every peer"
STEP_MICROSECONDS = 10.0
FLAT = 0.95
"""The second half of a long run must have this part of the first one's speed, by the medians of their tenths."""


def write(results: Results, folder: Path) -> Path:
    """Writes the page and the chart and returns the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    has_chart = chart.draw(results, folder / "bench.png")
    page = folder / "bench.md"
    page.write_text(markdown(results, environments.failures(), has_chart=has_chart))
    return page


def markdown(results: Results, absent: dict[str, str], *, has_chart: bool) -> str:
    """Returns the page."""
    measured = [work for work in WORKLOADS.values() if quiet(results.of(work.name))]
    parts = [
        "# Speed beside other libraries",
        "",
        f"Measured {datetime.now(UTC).date().isoformat()} on {_cpu_name()} ({os.cpu_count()} cores), Python "
        f"{platform.python_version()}, with `make bench`. Everybody does the same work, but for what stands below, "
        "with the threads that are stated, on as many cores; environment steps per second include learning. Runs are "
        "interleaved, and a "
        "ratio compares two runs of the same repetition: trust ratios more than rates. Runs beside which others used "
        "more than "
        f"{QUIET_CORES} cores are left out, whoever's they are. *Per CPU second* leaves out the time in which other "
        "programs had the core. Of aims that were not reached [the profile](profile.md) says why.",
    ]
    if has_chart:
        parts += ["", "![How many times faster quintain is](bench.png)"]
    parts += ["", *_claims(results, measured)]
    for work in measured:
        parts += ["", *_table(work, results.of(work.name))]
    parts += _growth(results)
    parts += _left_out(results, absent)
    parts += _differences(results)
    return "\n".join([*parts, "", *_versions(results), ""])


def _claims(results: Results, measured: list[Workload]) -> list[str]:
    lines = ["## What was to be reached", "", "| workload | against | wanted | reached | |", "|---|---|---|---|---|"]
    for work in measured:
        rows = quiet(results.of(work.name))
        lines += [
            f"| {work.title} | {claim.against} | {_wanted(claim)} | {_reached(claim, rows)} |" for claim in work.claims
        ]
        if work.name == "step_io_64" and (ours := best_of(rows, peers.OURS)):
            cost = 1e6 / median(score(row) for row in rows if contestant_of(row) == ours)
            verdict = _verdict(cost <= STEP_MICROSECONDS, is_aim=False)
            lines.append(f"| {work.title} | | at most {STEP_MICROSECONDS:g} µs | {cost:.1f} µs | {verdict} |")
        if work.kind != "step_io" and (line := _memory(work, rows)):
            lines.append(line)
    return lines


def _wanted(claim: Claim) -> str:
    return f"{'aim: ' if claim.is_aim else ''}{claim.at_least:g} x"


def _reached(claim: Claim, rows: list[Row]) -> str:
    """Returns the two last cells of a claim: the ratio to whom it is hardest to beat, and whether it is enough."""
    ours = best_of(rows, peers.OURS)
    rivals = {row["peer"] for row in rows} - {peers.OURS}
    rivals = rivals - peers.YARDSTICKS if claim.against == EVERY_PEER else rivals & {claim.against}
    found = {}
    for rival in rivals:
        theirs = best_of(rows, rival)
        if ours is not None and theirs is not None and (each := ratios(rows, ours, theirs)):
            found[theirs] = each
    if not found:
        return "not measured | "
    hardest = min(found, key=lambda theirs: median(found[theirs]))
    ratio = median(found[hardest])
    name = f" ({hardest.peer})" if claim.against == EVERY_PEER else ""
    return f"{_spread(found[hardest])}{name} | {_verdict(ratio >= claim.at_least, is_aim=claim.is_aim)}"


def _memory(work: Workload, rows: list[Row]) -> str:
    ours = best_of(rows, peers.OURS)
    if ours is None:
        return ""
    # The same work is that with the same kind of environments, if they have it.
    alike = [row for row in rows if _vector(contestant_of(row)) == _vector(ours)]
    theirs = best_of(alike, "sb3") or best_of(rows, "sb3")
    if theirs is None:
        return ""
    mine, other = (median(_column(rows, each, "peak_megabytes")) for each in (ours, theirs))
    verdict = _verdict(mine <= other, is_aim=False)
    return f"| {work.title}: memory | sb3 | no more | {mine:,.0f} MB to {other:,.0f} MB | {verdict} |"


def _vector(contestant: Contestant) -> str:
    return contestant.entry.partition("+")[0]


def _verdict(holds: bool, *, is_aim: bool) -> str:
    return "holds" if holds else ("not reached" if is_aim else "**does not hold**")


def _table(work: Workload, rows: list[Row]) -> list[str]:
    counted = quiet(rows)
    ours = best_of(counted, peers.OURS)
    everybody = {contestant_of(row) for row in counted}
    fastest_first = sorted(
        everybody, key=lambda each: -median(score(row) for row in counted if contestant_of(row) == each)
    )
    goal = work.meter == "goal"
    rate = "seconds for all steps; to the goal" if goal else "steps/s, median (range)"
    lines = [
        f"## {work.title}",
        "",
        f"| library | {rate} | {peers.OURS} is better by, median (range) | per CPU second | cores used | "
        "cores others used | peak MB | runs |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return lines + [_line(counted, each, ours, is_goal=goal) for each in fastest_first]


def _line(rows: list[Row], contestant: Contestant, ours: Contestant | None, *, is_goal: bool) -> str:
    own = [row for row in rows if contestant_of(row) == contestant]
    cells = [contestant.label, _goal_cell(own) if is_goal else _rate_cell(own)]
    if ours is None or contestant == ours:
        cells += ["", ""]
    else:
        wall = ratios(rows, ours, contestant)
        mine = median(_column(rows, ours, "steps_per_cpu_second"))
        per_cpu = mine / median(_column(rows, contestant, "steps_per_cpu_second"))
        cells += [_spread(wall) if wall else "", f"{per_cpu:.2f} x"]
    cells += [f"{median(_column(rows, contestant, name)):.2f}" for name in ("own_cores", "foreign_cores")]
    cells += [f"{median(_column(rows, contestant, 'peak_megabytes')):,.0f}", str(len(own))]
    return "| " + " | ".join(cells) + " |"


def _rate_cell(rows: list[Row]) -> str:
    rates = [row["steps_per_second"] for row in rows]
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _goal_cell(rows: list[Row]) -> str:
    reached = [row["goal_seconds"] for row in rows if row["goal_seconds"] is not None]
    goal = f"{median(reached):.1f}" if reached else "never"
    return f"{median(row['total_seconds'] for row in rows):.1f}; {goal} ({len(reached)} of {len(rows)} runs reached it)"


def _growth(results: Results) -> list[str]:
    """Returns what a step costs with more lanes, and whether a long run keeps its pace."""
    lines: list[str] = []
    costs = chart.step_costs(results, peers.OURS)
    if len(costs) > 1:
        falls = all(costs[a] > costs[b] for a, b in zip(list(costs), list(costs)[1:], strict=False))
        shown = ", ".join(f"{lanes} lanes {cost:.1f} µs" for lanes, cost in costs.items())
        lines += ["", f"What a step costs: {shown}. It must fall with every step: {_verdict(falls, is_aim=False)}."]
    for row in quiet(results.of("growth_length"))[-1:]:
        parts = row["parts"]
        # A single tenth may meet a slow moment of the machine; what grows with a run would be slow to its end.
        share = median(parts[len(parts) // 2 :]) / median(parts[: (len(parts) + 1) // 2])
        rates = ", ".join(f"{rate:,.0f}" for rate in parts)
        verdict = _verdict(share >= FLAT, is_aim=False)
        lines += [
            "",
            f"Steps/s in each tenth of a long run: {rates}. The slowest has {min(parts) / max(parts):.0%} of the "
            f"fastest; the second half has {share:.0%} of the first: {verdict}.",
        ]
    return ["", "## Growth", *lines] if lines else []


def _left_out(results: Results, absent: dict[str, str]) -> list[str]:
    lines = [f"- {name} could not be installed: {reason}" for name, reason in sorted(absent.items())]
    for work in WORKLOADS.values():
        for contestant in sorted({contestant_of(row) for row in results.of(work.name)}, key=lambda each: each.label):
            rows = results.of(work.name, contestant)
            if all("error" in row for row in rows):
                lines.append(f"- {contestant.label} failed on {work.name}: {rows[-1]['error']}")
    return ["", "## Left out", "", *lines] if lines else []


def _differences(results: Results) -> list[str]:
    measured = {row["peer"] for row in results.rows}
    lines = [f"- {peer} {what}" for peer, what in sorted(peers.DIFFERENCES.items()) if peer in measured]
    return ["", "## Not quite the same work", "", *lines] if lines else []


def _versions(results: Results) -> list[str]:
    found: dict[str, dict[str, str]] = {row["peer"]: row["versions"] for row in results.rows if "versions" in row}
    commits = sorted({row["commit"] for row in results.rows if row["peer"] == peers.OURS and "commit" in row})
    lines = [f"- {peers.OURS} is measured at commit {', '.join(commits)}"] if commits else []
    lines += [
        f"- {peer}: " + ", ".join(f"{package} {number}" for package, number in versions.items())
        for peer, versions in sorted(found.items())
    ]
    return ["## Versions", "", *lines]


def _spread(values: list[float]) -> str:
    return f"{median(values):.2f} x ({min(values):.2f} to {max(values):.2f})"


def _column(rows: list[Row], contestant: Contestant, name: str) -> list[float]:
    return [row[name] for row in rows if contestant_of(row) == contestant]


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
