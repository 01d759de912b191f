"""Writes what was measured: docs/results/bench.md and a chart, from the rows of a results file.

Runs beside other load are left out for every side alike. A ratio compares two runs of the same repetition and commit,
and rounds of several commits are never put together. Where quintain acts one version behind, it is compared apart.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import chart
import commits
import environments
import peers
import wanted
from claims import MODES, claims, counted, earlier_criteria, vector_of, verdict
from contestants import LOCKSTEP, ONE_BEHIND, Contestant, contestants_of
from results import (
    QUIET_CORES,
    Results,
    Row,
    at,
    best_of,
    both,
    column,
    contestant_of,
    newest_set,
    quiet,
    ratios,
    rounds,
    score,
    spread,
)
from wanted import WANTED
from workloads import WORKLOADS, Workload

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
FIRST_MACHINE = "AMD EPYC (2 cores), Python 3.11.7"
"""Of rows from before it was written down: every page of that time names it."""


def write(results: Results, folder: Path) -> Path:
    """Writes the page and the chart and returns the page's path."""
    standing = wanted.standing()
    folder.mkdir(parents=True, exist_ok=True)
    has_chart = chart.draw(results, folder / "bench.png")
    page = folder / "bench.md"
    page.write_text(markdown(results, environments.failures(), has_chart=has_chart, standing=standing))
    return page


def markdown(results: Results, absent: dict[str, str], *, has_chart: bool, standing: str) -> str:
    """Returns the page."""
    measured = [work for work in WORKLOADS.values() if counted(results, work)]
    parts = [
        "# Speed beside other libraries",
        "",
        f"Written {datetime.now(UTC).date().isoformat()} by `make bench`. Measured on "
        f"{' and on '.join(dict.fromkeys(row.get('machine', FIRST_MACHINE) for row in results.rows))}. "
        "All do the same work, but for what stands below, "
        "with the threads that are stated, on at most as many cores as the workload's largest number of threads; "
        "environment steps per second include learning. Rounds are interleaved, and a ratio compares two runs of the "
        "same round: trust ratios more than rates. Runs beside which others used more than "
        f"{QUIET_CORES} cores are left out, of all sides alike. Rounds of one commit are summarised, for each library "
        f"those of the newest commit that has {WANTED.rounds} with quintain, else of the newest; `bench.jsonl` has "
        f"all. *{ONE_BEHIND.capitalize()}*: quintain acts with the weights before the last update while it learns, on "
        f"a second core; *{LOCKSTEP}*: it acts and learns in turns. *Per CPU second* leaves out the time in which "
        "other programs had the core. Of aims that were not reached [the profile](profile.md) says why."
        + commits.note_on_lost(row["commit"] for row in results.rows),
    ]
    if has_chart:
        parts += ["", "![How many times faster quintain is](bench.png)"]
    parts += ["", *claims(results, measured, standing), *earlier_criteria(results, measured)]
    for work in measured:
        parts += ["", *_table(work, quiet(results.of(work.name)))]
    parts += _growth(results)
    parts += _left_out(results, absent)
    parts += _differences(results)
    parts += _earlier_rounds(results, measured)
    return "\n".join([*parts, "", *_versions(results), ""])


def _table(work: Workload, rows: list[Row]) -> list[str]:
    """Returns a table for a workload; each commit that a comparison is made of has its lines together."""
    newest = {row["peer"]: newest_set(rows, row["peer"], work.enough_rounds) for row in rows}
    by_commit: dict[str, set[str]] = {}
    for peer, found in newest.items():
        if found and peer != peers.OURS:
            by_commit.setdefault(found[0]["commit"], set()).add(peer)
    if not by_commit:
        by_commit = {newest[peers.OURS][0]["commit"]: set()}
    newest_first = [commit for commit in reversed(list(rounds(rows, peers.OURS))) if commit in by_commit]
    goal = work.meter == "goal"
    rate = "seconds to the goal; for all steps" if goal else "steps/s, median (range)"
    has_behind = any(contestant_of(row).is_behind for row in rows)
    better = [f"quintain {mode} is better by, median (range)" for mode in (MODES if has_behind else [LOCKSTEP])]
    heads = [
        "library",
        rate,
        *better,
        "per CPU second",
        "cores used",
        "cores others used",
        "peak MB",
        "rounds",
        "commit",
    ]
    lines = [f"## {work.title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for commit in newest_first:
        shown = [row for row in at(rows, commit) if row["peer"] in {peers.OURS, *by_commit[commit]}]
        everybody = sorted({contestant_of(row) for row in shown}, key=lambda each: _place(shown, each))
        lines += [_line(shown, each, is_goal=goal, modes=list(MODES.values())[: len(better)]) for each in everybody]
    return lines


def _place(rows: list[Row], contestant: Contestant) -> tuple[bool, str, int, bool, float]:
    """Puts our ways first, each one in lockstep before those one version behind, then the others, fastest first."""
    speed = median(score(row) for row in rows if contestant_of(row) == contestant)
    if contestant.peer == peers.OURS:
        return (False, vector_of(contestant), contestant.threads, contestant.is_behind, -speed)
    return (True, "", 0, False, -speed)


def _line(rows: list[Row], contestant: Contestant, *, is_goal: bool, modes: list[bool]) -> str:
    own = [row for row in rows if contestant_of(row) == contestant]
    cells = [contestant.label, _goal_cell(own) if is_goal else _rate_cell(own)]
    paired = both(rows, contestant.peer)
    for is_behind in modes:
        ours = best_of(paired, peers.OURS, is_behind=is_behind)
        found = ratios(paired, ours, contestant) if ours is not None and ours != contestant else []
        cells.append(spread(found) if found else "")
    lockstep = best_of(paired, peers.OURS)
    if lockstep is None or contestant == lockstep:
        cells.append("")
    else:
        mine, other = (median(column(paired, each, "steps_per_cpu_second")) for each in (lockstep, contestant))
        cells.append(f"{mine / other:.2f} x")
    cells += [f"{median(column(rows, contestant, name)):.2f}" for name in ("own_cores", "foreign_cores")]
    cells += [f"{median(column(rows, contestant, 'peak_megabytes')):,.0f}", str(len(own)), own[0]["commit"]]
    return "| " + " | ".join(cells) + " |"


def _rate_cell(rows: list[Row]) -> str:
    rates = [row["steps_per_second"] for row in rows]
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def _goal_cell(rows: list[Row]) -> str:
    reached = [row["goal_seconds"] for row in rows if row["goal_seconds"] is not None]
    goal = f"{median(reached):.1f}" if reached else "never"
    return f"{goal} ({len(reached)} of {len(rows)} runs reached it); {median(row['total_seconds'] for row in rows):.1f}"


def _growth(results: Results) -> list[str]:
    """Returns what a step costs with more lanes, and whether a long run keeps its pace."""
    lines: list[str] = []
    costs = chart.step_costs(results, peers.OURS)
    if len(costs) > 1:
        falls = all(costs[a] > costs[b] for a, b in zip(list(costs), list(costs)[1:], strict=False))
        shown = ", ".join(f"{lanes} lanes {cost:.1f} µs" for lanes, cost in costs.items())
        lines += ["", f"What a step costs: {shown}. It must fall with every step: {verdict(falls, is_aim=False)}."]
    for row in counted(results, WORKLOADS["growth_length"])[-1:]:
        parts = row["parts"]
        # A single tenth may meet a slow moment of the machine; what grows with a run would be slow to its end.
        share = median(parts[len(parts) // 2 :]) / median(parts[: (len(parts) + 1) // 2])
        rates = ", ".join(f"{rate:,.0f}" for rate in parts)
        judged = verdict(share >= WANTED.pace, is_aim=False)
        lines += [
            "",
            f"Steps/s in each tenth of a long run: {rates}. The slowest has {min(parts) / max(parts):.0%} of the "
            f"fastest; the second half has {share:.0%} of the first, by medians: {judged}.",
        ]
    return ["", "## Growth", *lines] if lines else []


def _left_out(results: Results, absent: dict[str, str]) -> list[str]:
    lines = [f"- {name} could not be installed: {reason}" for name, reason in sorted(absent.items())]
    for work in WORKLOADS.values():
        for contestant in sorted({contestant_of(row) for row in results.of(work.name)}, key=lambda each: each.label):
            rows = results.of(work.name, contestant)
            if all("error" in row for row in rows):
                lines.append(f"- {contestant.label} failed on {work.name}: {rows[-1]['error']}")
    lines += _unmeasured(results)
    return ["", "## Left out", "", *lines] if lines else []


def _unmeasured(results: Results) -> list[str]:
    """Returns the ways in which a library that was measured on a workload could do it, and was not measured."""
    lines = []
    for work in WORKLOADS.values():
        ran = {contestant_of(row) for row in results.of(work.name)}
        able = contestants_of(work, sorted({each.peer for each in ran} - {peers.OURS}))
        lines += [f"- {each.label} was not measured on: {work.title}" for each in able if each not in ran]
    return lines


def _differences(results: Results) -> list[str]:
    measured = {row["peer"] for row in results.rows}
    lines = [f"- {peer} {what}" for peer, what in sorted(peers.DIFFERENCES.items()) if peer in measured]
    return ["", "## Not quite the same work", "", *lines] if lines else []


def _earlier_rounds(results: Results, measured: list[Workload]) -> list[str]:
    """Returns what other commits gave than those above, beside the library that was always measured."""
    lines = []
    for work in measured:
        rows = quiet(results.of(work.name))
        shown = {row["commit"] for row in counted(results, work, "sb3")}
        for commit in rounds(rows, "sb3"):
            old = both(at(rows, commit), "sb3")
            theirs = best_of(old, "sb3")
            for mode, is_behind in MODES.items():
                ours = best_of(old, peers.OURS, is_behind=is_behind)
                if (
                    commit not in shown
                    and ours is not None
                    and theirs is not None
                    and (found := ratios(old, ours, theirs))
                ):
                    lines.append(f"| {work.title} | {mode} | {spread(found)} | {len(found)} | {commit} |")
    head = [
        "| workload | quintain acts | better than sb3 by, median (range) | rounds | commit |",
        "|---|---|---|---|---|",
    ]
    return ["", "## Rounds of other commits", "", *head, *lines] if lines else []


def _versions(results: Results) -> list[str]:
    found: dict[str, dict[str, str]] = {row["peer"]: row["versions"] for row in results.rows if "versions" in row}
    lines = [
        f"- {peer}: " + ", ".join(f"{package} {number}" for package, number in versions.items())
        for peer, versions in sorted(found.items())
    ]
    return ["## Versions", "", *lines]
