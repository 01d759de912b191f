"""Small images beside ML-Agents and bare torch: the same file for both, the same networks for the floor."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.bench.conftest import Bench


def row(peer: str, number: int, microseconds: float) -> dict[str, Any]:
    return {
        "workload": "ppo_image",
        "agents": 16,
        "peer": peer,
        "round": number,
        "commit": "abc",
        "steps_per_cpu_second": 1e6 / microseconds,
        "foreign_cores": 0.5,
        "versions": {peer: "1.2"},
    }


def test_every_contestant_can_do_every_case(bench: Bench) -> None:
    images = bench["images"]
    assert {name for name, _ in images.CASES} == set(images.WORKLOADS)
    for name in images.CONTESTANTS:
        peer = import_module(f"peers.{name}")
        assert peer.KIT in bench["environments"].KITS
        assert all(callable(getattr(peer, workload)) for workload in images.WORKLOADS)


@pytest.mark.parametrize("trainer_type", ["ppo", "sac"])
def test_the_floor_has_the_networks_that_we_learn_with(bench: Bench, trainer_type: str) -> None:
    ours, bare, task = (import_module(name) for name in ("peers.quintain_agents", "peers.bare_torch", "image_agents"))
    [learner] = ours._trainer(1, trainer_type, task).learners.values()
    encoder, size = bare._encoder(trainer_type)
    policy = learner.policy
    assert policy.encoders[0].output_size == size
    shapes = [sorted(tuple(p.shape) for p in each.parameters()) for each in (policy.encoders[0], encoder)]
    assert shapes[0] == shapes[1]
    num_outputs = task.NUM_CHOICES + (2 * task.NUM_NUMBERS if trainer_type == "sac" else 0)
    actor = bare._perceptron(trainer_type, size, num_outputs)
    assert [p.shape for p in policy.actor.parameters()] == [p.shape for p in actor.parameters()]
    assert learner.algorithm.settings.batch_size == task.BATCH_SIZE[trainer_type]


def test_ratios_are_of_processor_time_in_the_same_round(bench: Bench) -> None:
    images = bench["images"]
    rows = [row(images.OURS, 0, 120.0), row(images.THEIRS, 0, 240.0), row(images.BARE, 0, 80.0)]
    rows += [row(images.OURS, 1, 150.0), row(images.THEIRS, 1, 200.0), row(images.BARE, 1, 100.0)]
    assert images.ratios(rows, images.THEIRS) == pytest.approx([0.5, 0.75])
    assert images.ratios(rows, images.BARE) == pytest.approx([1.5, 1.5])
    page = images.as_page(rows)
    assert "| ppo_image | 16 | 135 | 220 | 90 | 0.62 (0.50 to 0.75) | at most 1.0: met |" in page
    assert "| 1.50 (1.50 to 1.50) | at most 1.3: **not met** |" in page


@pytest.mark.slow
def test_the_floor_is_measured_in_a_process_of_its_own(bench: Bench) -> None:
    found = bench["agents"].measure(Path(sys.executable), bench["images"].BARE, "ppo_image", 16, 0.1)
    assert found["steps_per_cpu_second"] > 0.0
    assert found["versions"]["torch"]
