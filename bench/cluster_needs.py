"""What 100 actors and 8 learners need, by what bench/ray_speed.py measured; writes docs/results/cluster_needs.md.

Bytes are arithmetic. Times and versions behind are a simulation of fragments, which come when they are complete and are
collected with the newest weights: actors on nodes of 8, each node reads a version of the weights once over its network,
each learner receives an eighth of the fragments over its own, and copies them as bench/ray_speed.py measured. An update
begins when the last one is over and its fragments are there; there are two blocks, so lanes wait with what they have
while one is learned from and the other is full. Nothing of it was measured on a cluster.

python bench/cluster_needs.py [--costs docs/results/ray_speed.json] [--into FILE]
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from collections import deque
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
NUM_ACTORS, NUM_LEARNERS, ACTORS_PER_NODE, NUM_UPDATES, WARM_UP = 100, 8, 8, 60, 10
NETWORK = 10e9 / 8
"""Bytes/s of one node's network: 10 Gbit/s."""


@dataclass(frozen=True)
class Workload:
    """A task: its steps, its policy, and how long updates take."""

    name: str
    obs_bytes: int
    weights_bytes: float
    step_seconds: float
    """Mean time of a step in one lane, acting included."""
    lanes_per_actor: int
    num_steps: int
    num_fragments: int
    update_seconds: float

    @property
    def fragment_bytes(self) -> int:
        # Beside the observation a step has about 60 bytes: action, reward, ends, value, log-probability, versions.
        return (self.num_steps + 1) * (self.obs_bytes + 60)

    @property
    def steps_per_second(self) -> float:
        return NUM_ACTORS * self.lanes_per_actor / self.step_seconds


WORKLOADS = (
    Workload("vectors: 64 float32, 1 MB of weights", 256, 1e6, 0.010, 4, 64, 512, 1.0),
    Workload("small images: 84 x 84 x 4 bytes, 7 MB", 28_224, 7e6, 0.010, 4, 64, 512, 2.0),
    Workload("Minecraft: 128 x 128 x 3 bytes, 50 MB", 49_152, 50e6, 0.050, 16, 256, 512, 20.0),
    Workload("Minecraft, 500 MB of weights", 49_152, 500e6, 0.050, 16, 256, 512, 20.0),
)


@dataclass(frozen=True)
class Found:
    """What a simulation came to."""

    update_seconds: float
    """Mean time from one update to the next."""
    busy: float
    """Share of the time in which the learners learn."""
    lag: float
    """Versions that steps of a batch are behind, in the mean."""
    oldest: int
    """Versions that the first step of a fragment is behind at most."""


def simulate(work: Workload, costs: dict[str, float]) -> Found:
    """Simulates lanes, networks and learners event by event, after a warm-up."""
    draw = random.Random(0)
    num_nodes = -(-NUM_ACTORS // ACTORS_PER_NODE)
    # One put, and then a pull by each node; Ray lets nodes pull from each other, which halves what is left each time.
    rounds = num_nodes.bit_length()
    broadcast = (
        work.weights_bytes / costs["put_bytes_per_second"]
        + rounds * (work.weights_bytes / NETWORK + costs["call_seconds"])
        + ACTORS_PER_NODE * work.weights_bytes / costs["read_bytes_per_second"]
    )
    travel = costs["call_seconds"] + work.fragment_bytes * (
        1 / costs["put_bytes_per_second"] + 1 / NETWORK + 1 / costs["read_bytes_per_second"]
    )
    published: deque[tuple[float, int]] = deque([(0.0, 0)])
    """When actors have a version, the newest last."""

    def version_at(time: float) -> int:
        return next((version for when, version in reversed(published) if when <= time), 0)

    fragment = work.num_steps * work.step_seconds
    events = [(draw.random() * fragment, lane) for lane in range(NUM_ACTORS * work.lanes_per_actor)]
    heapq.heapify(events)
    free_at = [0.0] * NUM_LEARNERS
    waiting: list[tuple[float, float]] = []
    version, learner_free, ends, lags, oldest, learned = 0, 0.0, [], [], 0, 0.0
    while len(ends) < WARM_UP + NUM_UPDATES:
        ended, lane = heapq.heappop(events)
        # Of two blocks the one that is filled now was released by the update before the last.
        left = max(ended, ends[-2] if len(ends) > 1 else 0.0)
        heapq.heappush(events, (left + fragment * draw.uniform(0.8, 1.2), lane))
        rank = lane % NUM_LEARNERS
        # A learner takes in one fragment after another.
        free_at[rank] = max(free_at[rank], left) + travel
        waiting.append((free_at[rank], ended))
        if len(waiting) < work.num_fragments:
            continue
        began = max(learner_free, *(arrived for arrived, _ in waiting))
        if len(ends) >= WARM_UP:
            for _, each in waiting:
                first, last = version_at(each - fragment), version_at(each)
                lags.append(version - (first + last) / 2)
                oldest = max(oldest, version - first)
            learned += work.update_seconds
        learner_free = began + work.update_seconds
        version += 1
        published.append((learner_free + broadcast, version))
        ends.append(learner_free)
        waiting.clear()
    span = ends[-1] - ends[WARM_UP - 1]
    return Found(span / NUM_UPDATES, learned / span, statistics.mean(lags), oldest)


def page(costs: dict[str, float]) -> str:
    lines = [
        "# What 100 actors and 8 learners need",
        "",
        "Written by `bench/cluster_needs.py`, which has the model: arithmetic and a simulation from the costs that "
        "`make bench-ray` measured on one machine, not a measurement of a cluster. A call takes "
        f"{1e3 * costs['call_seconds']:.1f} ms, {costs['put_bytes_per_second'] / 1e9:.1f} GB/s go into an object store "
        f"and {costs['read_bytes_per_second'] / 1e9:.1f} GB/s from it into a block; networks of 10 Gbit/s and nodes of "
        f"{ACTORS_PER_NODE} actors are assumed, and each actor steps its lanes at the same time.",
        "",
        "| | " + " | ".join(work.name for work in WORKLOADS) + " |",
        "|---" * (len(WORKLOADS) + 1) + "|",
    ]
    num_nodes = -(-NUM_ACTORS // ACTORS_PER_NODE)
    found = [simulate(work, costs) for work in WORKLOADS]
    rows: dict[str, list[str]] = {
        "lanes per actor; ms a step": [f"{w.lanes_per_actor}; {1e3 * w.step_seconds:.0f}" for w in WORKLOADS],
        "fragments and steps of one update": [f"{w.num_fragments} x {w.num_steps}" for w in WORKLOADS],
        "steps/s of all actors, if they never wait": [f"{w.steps_per_second:,.0f}" for w in WORKLOADS],
        "MB of a fragment": [f"{w.fragment_bytes / 1e6:.2f}" for w in WORKLOADS],
        "MB/s of experience, all; one learner": [_rates(w, each) for w, each in zip(WORKLOADS, found, strict=True)],
        "MB/s of weights out of the learner's node, at most": [
            f"{num_nodes * w.weights_bytes / each.update_seconds / 1e6:.1f}"
            for w, each in zip(WORKLOADS, found, strict=True)
        ],
        "MB of object store on a node of actors": [f"{_actor_store(w) / 1e6:.0f}" for w in WORKLOADS],
        "MB of object store on a learner's node": [
            f"{(2 * w.weights_bytes + w.num_fragments * w.fragment_bytes / NUM_LEARNERS) / 1e6:.0f}" for w in WORKLOADS
        ],
        "seconds from update to update, of which it learns": [
            f"{each.update_seconds:.1f}, {w.update_seconds:.1f}" for w, each in zip(WORKLOADS, found, strict=True)
        ],
        "learners busy": [f"{100 * each.busy:.0f} %" for each in found],
        "versions behind: mean, most": [f"{each.lag:.1f}, {each.oldest}" for each in found],
    }
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def _rates(work: Workload, found: Found) -> str:
    rate = work.num_fragments * work.fragment_bytes / found.update_seconds / 1e6
    return f"{rate:,.0f}; {rate / NUM_LEARNERS:,.0f}"


def _actor_store(work: Workload) -> float:
    """Two versions of the weights, and one fragment of each lane that is on its way."""
    return 2 * work.weights_bytes + ACTORS_PER_NODE * work.lanes_per_actor * work.fragment_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, default=RESULTS / "ray_speed.json")
    parser.add_argument("--into", type=Path, default=RESULTS / "cluster_needs.md")
    options = parser.parse_args()
    rounds = json.loads(options.costs.read_text())[-1]["rounds"]
    names = ("call_seconds", "put_bytes_per_second", "read_bytes_per_second")
    costs = {name: statistics.median(each["broadcast"][name] for each in rounds) for name in names}
    options.into.write_text(page(costs))
    print(page(costs))


if __name__ == "__main__":
    main()
