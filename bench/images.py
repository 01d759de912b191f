"""Measures agents that see small images beside ML-Agents and beside bare torch; writes docs/results/bench_images.md.

All three run on one thread, each in a process of its own, one after the other in every round, in an order that changes
with the round. Compared is the processor time of an environment step, which others on the machine disturb least.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from statistics import median

import commits
from agents import OURS, THEIRS, Row, add, earlier_rounds, measure, newest
from environments import interpreter
from report import RESULTS
from run import commit

BARE = "bare_torch"
CONTESTANTS = (OURS, THEIRS, BARE)
WORKLOADS = {
    "ppo_image": "PPO, one image of 20x20x3, a choice of two; three epochs in minibatches of 16 on each buffer of 64",
    "sac_images": "SAC, two images of 20x20x3, a number and a choice of two; one minibatch of 128 per step",
}
CASES = (("ppo_image", 16), ("ppo_image", 1), ("sac_images", 1))
"""Workloads and how many agents there are at once."""
AT_MOST = {THEIRS: 1.0, BARE: 1.3}
"""How many times the processor time of each we may take."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS), metavar="WORKLOAD", help="default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run; at least one update is measured")
    parser.add_argument("--results-dir", type=Path, default=RESULTS, help="where the page and its rows go")
    options = parser.parse_args()
    here = Path(sys.executable)
    pythons = {OURS: here, THEIRS: interpreter("mlagents"), BARE: here}
    rows: list[Row] = []
    record = options.results_dir / "bench_images.jsonl"
    begun = earlier_rounds(record, commit())
    for number in range(begun, begun + options.rounds):
        for workload, num_agents in [case for case in CASES if case[0] in options.workloads]:
            first = number % len(CONTESTANTS)
            for peer in (*CONTESTANTS[first:], *CONTESTANTS[:first]):
                row = measure(pythons[peer], peer, workload, num_agents, options.seconds)
                rows.append({**row, "round": number})
                print(f"{workload}, {num_agents} agents, #{number} {peer}: {microseconds(row):,.0f} us", flush=True)
    page = as_page(newest(add(rows, record)))
    (options.results_dir / "bench_images.md").write_text(page)
    print(page)


def microseconds(row: Row) -> float:
    """Returns the processor time of an environment step of one agent."""
    return 1e6 / float(row["steps_per_cpu_second"])


def ratios(rows: list[Row], peer: str) -> list[float]:
    """Returns how many times a contestant's processor time we took in each round, from the rows of one case."""
    taken = {(row["peer"], row["round"]): microseconds(row) for row in rows}
    return [taken[OURS, number] / taken[peer, number] for number in sorted({row["round"] for row in rows})]


def as_page(rows: list[Row]) -> str:
    versions = {row["peer"]: ", ".join(f"{name} {text}" for name, text in row["versions"].items()) for row in rows}
    foreign = [row["foreign_cores"] for row in rows]
    lines = [
        "# Small images beside ML-Agents and bare torch",
        "",
        f"`make bench-images`: {len({row['round'] for row in rows})} rounds of commit {rows[0]['commit']}, in turns, "
        f"one thread each, on {os.cpu_count()} cores of which other programs used {median(foreign):.1f} meanwhile (up "
        f"to {max(foreign):.1f}). The environment computes nothing. quintain and ML-Agents run the same trainer file, "
        "whose settings are those of ML-Agents' own tests of learning from images (`vis_encode_type: simple`, one "
        "hidden layer). *Bare torch* is the floor: forward, backward and `torch.optim.Adam` of quintain's networks as "
        "plain modules on rows that lie ready, as often as quintain acts and learns with them; no environment, no "
        "losses, no replay." + commits.note_on_lost([rows[0]["commit"]]),
        "",
        "Microseconds of processor time per environment step of one agent, medians; ratios are medians of the rounds', "
        "with the lowest and the highest. Less is better.",
        "",
        f"{versions[OURS]}; {versions[THEIRS]}; bare {versions[BARE]}. ML-Agents has encoders of their own for actor, "
        "critic and each of SAC's value networks; quintain's actor and critic of PPO share one, and so do SAC's two "
        "critics. ML-Agents 0.28 is the last release that can be installed beside Python 3.11.",
        "",
        "| what | agents | quintain | ML-Agents | bare torch | of ML-Agents' | wanted | of bare torch's | wanted |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for workload, num_agents in dict.fromkeys((row["workload"], row["agents"]) for row in rows):
        of_case = [row for row in rows if (row["workload"], row["agents"]) == (workload, num_agents)]
        taken = [median(microseconds(row) for row in of_case if row["peer"] == peer) for peer in CONTESTANTS]
        cells = [workload, str(num_agents), *(f"{each:,.0f}" for each in taken)]
        for peer in (THEIRS, BARE):
            found = ratios(of_case, peer)
            is_met = median(found) <= AT_MOST[peer]
            cells.append(f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})")
            cells.append(f"at most {AT_MOST[peer]}: {'met' if is_met else '**not met**'}")
        lines.append(f"| {' | '.join(cells)} |")
    explained = [f"- *{name}*: {WORKLOADS[name]}." for name in dict.fromkeys(row["workload"] for row in rows)]
    return "\n".join([*lines, "", *explained, ""])


if __name__ == "__main__":
    main()
