"""The rows of the benchmark that the README quotes, and the table in it that is written from the record.

`bench/run.py --quoted` measures them. A test holds the README equal to the record.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import peers
from results import Results, best_of, contestant_of, newest_set, quiet, ratios
from workloads import WORKLOADS

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- written by bench/run.py -->", "<!-- until here -->"


@dataclass(frozen=True)
class Quote:
    """One line of the README's table: quintain in lockstep beside a peer."""

    workload: str
    against: str


QUOTES = (
    Quote("ppo_cartpole_8", "sb3"),
    Quote("ppo_halfcheetah_64", "sb3"),
    Quote("sac_halfcheetah", "sb3"),
    Quote("sac_halfcheetah_2threads", "sb3"),
)
_NAMES = {"sb3": ("Stable-Baselines3", "stable-baselines3"), "sbx": ("sbx", "sbx-rl")}


def table(results: Results) -> list[str]:
    """Returns the lines of the README's table."""
    lines = [
        "| work | beside | threads | cores used | quintain is faster by, median (range) | rounds | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    return lines + [line for quote in QUOTES if (line := _line(quote, results))]


def _line(quote: Quote, results: Results) -> str:
    work = WORKLOADS[quote.workload]
    rows = newest_set(quiet(results.of(work.name)), quote.against, work.enough_rounds)
    ours, theirs = best_of(rows, peers.OURS), best_of(rows, quote.against)
    if ours is None or theirs is None:
        return ""
    found = ratios(rows, ours, theirs)
    name, package = _NAMES.get(quote.against, (quote.against, quote.against))
    sides = [[row for row in rows if contestant_of(row) == side] for side in (ours, theirs)]
    version = sides[1][-1]["versions"].get(package, "")
    few = "" if len(found) >= work.enough_rounds else f", fewer than {work.enough_rounds}"
    cells = [
        work.title,
        f"{name} {version}".strip(),
        ", ".join(dict.fromkeys(str(side.threads) for side in (ours, theirs))),
        " and ".join(dict.fromkeys(f"{median(row['own_cores'] for row in side):.1f}" for side in sides)),
        f"{median(found):.1f} x ({min(found):.1f} to {max(found):.1f})",
        f"{len(found)}{few}",
        rows[-1]["commit"],
    ]
    return f"| {' | '.join(cells)} |"


def with_table(page: str, lines: list[str]) -> str:
    """Returns a page with the table between the two marks."""
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return "\n".join([f"{before}{BEGIN}", "", *lines, "", f"{END}{after}"])


def write(results: Results) -> None:
    """Writes the table into the README."""
    README.write_text(with_table(README.read_text(), table(results)))
