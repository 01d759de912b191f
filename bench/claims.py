"""Judges what was measured by the figures of wanted.toml, and by criteria that those replaced.

quintain is judged in lockstep, as the other libraries act and learn, and one version behind where it was measured so.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import peers
import wanted
from contestants import LOCKSTEP, ONE_BEHIND, Contestant
from results import (
    Results,
    Row,
    all_steps_score,
    best_of,
    column,
    contestant_of,
    newest_set,
    quiet,
    ratios,
    score,
    spread,
)
from wanted import EVERY_PEER, WANTED, Claim
from workloads import WORKLOADS, Workload

MODES = {LOCKSTEP: False, ONE_BEHIND: True}
"""How quintain acts, and whether that is one version behind."""


def counted(results: Results, work: Workload, peer: str = peers.OURS) -> list[Row]:
    """Returns the rows that a comparison with a peer is made of, or ours that count by themselves."""
    return newest_set(quiet(results.of(work.name)), peer, work.enough_rounds)


def claims(results: Results, measured: list[Workload], standing: str) -> list[str]:
    """Returns the table of what was wanted and what was reached, lockstep beside one version behind."""
    lines = [
        "## What was to be reached",
        "",
        f"The figures stand in `{wanted.FILE}`. {standing}",
        "",
        "| workload | quintain acts | against | wanted | reached | rounds | |",
        "|---|---|---|---|---|---|---|",
    ]
    for work in measured:
        modes = [
            mode
            for mode, is_behind in MODES.items()
            if best_of(counted(results, work), peers.OURS, is_behind=is_behind)
        ]
        lines += [
            f"| {work.title} | {mode} | {claim.against} | {_wanted(claim)} | {_reached(results, work, claim, mode)} |"
            for claim in work.claims
            for mode in modes
        ]
        for mode in modes:
            if work.kind != "step_io" and (cells := _memory(counted(results, work, "sb3"), mode)):
                lines.append(f"| {work.title}: memory | {mode} | sb3 | no more | {cells} |")
        if work.kind == "step_io":
            rows = counted(results, work)
            cost = 1e6 / median(score(row) for row in rows if contestant_of(row) == best_of(rows, peers.OURS))
            judged = verdict(cost <= WANTED.step_microseconds, is_aim=False)
            limit = f"at most {WANTED.step_microseconds:g} µs"
            lines.append(f"| {work.title} | | | {limit} | {cost:.1f} µs | {_rounds(rows)} | {judged} |")
    return lines


def _wanted(claim: Claim) -> str:
    return f"{'aim: ' if claim.is_aim else ''}{claim.at_least:g} x"


def _reached(results: Results, work: Workload, claim: Claim, mode: str) -> str:
    """Returns the last cells of a claim: the ratio to the peer that is hardest to beat, its rounds, and the verdict."""
    found: dict[str, list[float]] = {}
    for rival in {row["peer"] for row in results.of(work.name)} - {peers.OURS}:
        found |= _ratios_to(counted(results, work, rival), claim, mode)
    return _judged(found, claim)


def _ratios_to(rows: list[Row], claim: Claim, mode: str) -> dict[str, list[float]]:
    """Returns the ratios to each peer in these rows that a claim is about."""
    found = {}
    rivals = {row["peer"] for row in rows} - {peers.OURS}
    for rival in rivals - peers.YARDSTICKS if claim.against == EVERY_PEER else rivals & {claim.against}:
        ours, theirs = best_of(rows, peers.OURS, is_behind=MODES[mode]), best_of(rows, rival)
        if ours is not None and theirs is not None and (each := ratios(rows, ours, theirs)):
            found[rival] = each
    return found


def _judged(found: dict[str, list[float]], claim: Claim) -> str:
    if not found:
        return "not measured | | "
    hardest = min(found, key=lambda rival: median(found[rival]))
    name = f" ({hardest})" if claim.against == EVERY_PEER else ""
    judged = verdict(median(found[hardest]) >= claim.at_least, is_aim=claim.is_aim)
    return f"{spread(found[hardest])}{name} | {len(found[hardest])} | {judged}"


def _memory(rows: list[Row], mode: str) -> str:
    """Returns the last cells of a comparison of memory; none where there is nothing to compare."""
    ours = best_of(rows, peers.OURS, is_behind=MODES[mode])
    if ours is None:
        return ""
    # The same work is that with the same kind of environments, if they have it.
    alike = [row for row in rows if vector_of(contestant_of(row)) == vector_of(ours)]
    theirs = best_of(alike, "sb3") or best_of(rows, "sb3")
    assert theirs is not None
    return f"{_megabytes(rows, ours, theirs)} | {_rounds(rows)} | {_memory_verdict(rows, ours, theirs)}"


def _megabytes(rows: list[Row], ours: Contestant, theirs: Contestant) -> str:
    mine, other = (median(column(rows, each, "peak_megabytes")) for each in (ours, theirs))
    return f"{mine:,.0f} MB to {other:,.0f} MB"


def _memory_verdict(rows: list[Row], ours: Contestant, theirs: Contestant) -> str:
    mine, other = (median(column(rows, each, "peak_megabytes")) for each in (ours, theirs))
    return verdict(mine <= other, is_aim=False)


def vector_of(contestant: Contestant) -> str:
    """Returns which environments a contestant steps."""
    return contestant.entry.partition("+")[0]


def verdict(holds: bool, *, is_aim: bool) -> str:
    """Returns how the page calls an outcome."""
    return "holds" if holds else ("not reached" if is_aim else "**does not hold**")


def earlier_criteria(results: Results, measured: list[Workload]) -> list[str]:
    """Returns what the criteria would say that were replaced after something had been measured by them."""
    give: dict[str, Callable[[], list[str]]] = {
        "pace": lambda: _slowest_tenth(results),
        "memory": lambda: _memory_of_fastest_rows(results, measured),
        "lockstep": lambda: _fastest_rows(results, measured),
        "goal": lambda: _time_for_all_steps(results),
        "pooled": lambda: _pooled_rounds(results, measured),
    }
    lines = [
        f"- Until {earlier.until} {earlier.was}. By that criterion: {'; '.join(give[name]()) or 'the same verdicts'}."
        for name, earlier in WANTED.earlier.items()
    ]
    return ["", "## Criteria that were changed", "", *lines]


def _fastest_rows(results: Results, measured: list[Workload]) -> list[str]:
    """Returns the claims that have another verdict where acting one version behind counts."""
    lines = []
    for work in measured:
        for claim in work.claims:
            lockstep, behind = (_reached(results, work, claim, mode).split(" | ") for mode in MODES)
            if _fastest_mode(results, work) == ONE_BEHIND and lockstep[-1] != behind[-1]:
                lines.append(f"{work.title}, {_wanted(claim)} of {claim.against}: {behind[0]}, {behind[-1]}")
    return lines


def _fastest_mode(results: Results, work: Workload) -> str:
    rows = counted(results, work)
    fastest = max(
        rows, key=lambda row: median(score(each) for each in rows if contestant_of(each) == contestant_of(row))
    )
    return ONE_BEHIND if contestant_of(fastest).is_behind else LOCKSTEP


def _memory_of_fastest_rows(results: Results, measured: list[Workload]) -> list[str]:
    """Returns the workloads in which the fastest row of each side takes more memory than that of sb3."""
    lines = []
    for work in measured:
        rows = counted(results, work, "sb3")
        ours = best_of(rows, peers.OURS, is_behind=MODES[_fastest_mode(results, work)])
        theirs = best_of(rows, "sb3")
        if ours is not None and theirs is not None and work.kind != "step_io":
            judged = _memory_verdict(rows, ours, theirs)
            if judged != _memory(rows, _fastest_mode(results, work)).split(" | ")[-1]:
                lines.append(f"{work.title}: {_megabytes(rows, ours, theirs)}, {judged}")
    return lines


def _pooled_rounds(results: Results, measured: list[Workload]) -> list[str]:
    """Returns the claims that have another verdict where the rounds of all commits are put together."""
    lines = []
    for work in measured:
        rows = quiet(results.of(work.name))
        for claim in work.claims:
            reached, judged = (
                _reached(results, work, claim, LOCKSTEP),
                _judged(_ratios_to(rows, claim, LOCKSTEP), claim),
            )
            if judged.split(" | ")[-1] != reached.split(" | ")[-1]:
                value, num_rounds, found = judged.split(" | ")
                lines.append(
                    f"{work.title}, {_wanted(claim)} of {claim.against}: {value}, {num_rounds} rounds, {found}"
                )
    return lines


def _time_for_all_steps(results: Results) -> list[str]:
    work = WORKLOADS["solve_cartpole"]
    rows = counted(results, work, "sb3")
    found = {}
    for ours in {contestant_of(row) for row in rows if row["peer"] == peers.OURS}:
        for theirs in {contestant_of(row) for row in rows if row["peer"] == "sb3"}:
            found[ours, theirs] = ratios(rows, ours, theirs, all_steps_score)
    if not found:
        return []
    best = max(found, key=lambda pair: median(found[pair]))
    return [f"{spread(found[best])} against sb3"]


def _slowest_tenth(results: Results) -> list[str]:
    return [
        f"it has {min(row['parts']) / max(row['parts']):.0%}, "
        f"{verdict(min(row['parts']) >= WANTED.pace * max(row['parts']), is_aim=False)}"
        for row in counted(results, WORKLOADS["growth_length"])[-1:]
    ]


def _rounds(rows: list[Row]) -> int:
    return len({row["repetition"] for row in rows})
