"""Agents beside ML-Agents: the same file for both, ratios by round, and a measurement of our own side."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from quintain.behaviors.translate import CommandLine, translate
from quintain.behaviors.yaml_import import check_configuration
from quintain.settings.yaml_text import parse
from tests.bench.conftest import Bench


def row(peer: str, number: int, rate: float, by_clock: float, foreign: float = 0.5) -> dict[str, Any]:
    return {
        "workload": "ppo",
        "agents": 256,
        "peer": peer,
        "round": number,
        "commit": "abc",
        "steps_per_cpu_second": rate,
        "steps_per_second": by_clock,
        "foreign_cores": foreign,
        "versions": {peer: "1.2"},
    }


def test_both_sides_can_do_every_workload(bench: Bench) -> None:
    agents = bench["agents"]
    for name in (agents.OURS, agents.THEIRS):
        peer = import_module(f"peers.{name}")
        assert peer.KIT in bench["environments"].KITS
        assert all(callable(getattr(peer, workload)) for workload in agents.WORKLOADS)
    assert set(agents.DEFAULT) <= set(agents.WORKLOADS)
    assert set(agents.WANTED) <= set(agents.DEFAULT)


@pytest.mark.parametrize("trainer_type", ["ppo", "poca", "ppo_memory"])
def test_their_file_means_the_same_to_us(bench: Bench, trainer_type: str) -> None:
    text = bench["free_agents"].trainer_file(trainer_type)
    asked = translate(check_configuration(parse(text, "free.yaml")), CommandLine(env="free_agents:ours", seed=0))
    behavior = asked.run_file.to_dict()["experiment"]["behaviors"]["Free"]
    assert behavior["algorithm"]["type"] == trainer_type.removesuffix("_memory")
    memory = behavior["policy"]["memory"]
    assert (memory and (memory["cell"], memory["size"])) == (("lstm", 64) if trainer_type == "ppo_memory" else None)
    assert (behavior["algorithm"]["batch_size"], behavior["algorithm"]["num_epochs"]) == (64, 3)
    assert (behavior["rollout"]["buffer_size"], behavior["rollout"]["time_horizon"]) == (12_000, 1000)
    assert behavior["policy"]["hidden_sizes"] == [128, 128]
    assert behavior["policy"]["normalize_obs"] is True


def test_agents_live_for_200_steps_and_are_replaced(bench: Bench) -> None:
    env = bench["free_agents"].ours(6)
    met, num_ends = set(env.get_steps("Free")[0].agent_id.tolist()), 0
    for _ in range(400):
        env.step()
        decided, ended = env.get_steps("Free")
        assert len(decided) == 6
        num_ends += len(ended)
        assert set(ended.agent_id.tolist()) <= met
        assert not set(ended.agent_id.tolist()) & set(decided.agent_id.tolist())
        met |= set(decided.agent_id.tolist())
    assert num_ends == 12
    assert len(met) == 18
    assert env.num_decisions == 2400


def test_ratios_are_of_runs_of_the_same_round(bench: Bench) -> None:
    agents = bench["agents"]
    ours, theirs = agents.OURS, agents.THEIRS
    rows = [row(theirs, 0, 10.0, 5.0), row(ours, 0, 100.0, 60.0), row(ours, 1, 90.0, 40.0), row(theirs, 1, 30.0, 10.0)]
    rows += [row(ours, 2, 80.0, 30.0, foreign=1.5), row(theirs, 2, 10.0, 3.0)]
    assert agents.ratios(rows) == [10.0, 3.0, 8.0]
    assert agents.ratios(rows, "steps_per_second") == [12.0, 4.0, 10.0]
    page = agents.as_page(rows)
    assert "| ppo | 256 | 90 | 10 | 8.0 | 3.0 to 10.0 | 8.0 | 10.0 |" in page
    assert "3 rounds" in page
    assert "used 0.5 meanwhile (up to 1.5)" in page


def test_rows_are_only_ever_added_and_the_page_is_of_the_newest_commit(bench: Bench, tmp_path: Path) -> None:
    agents, record = bench["agents"], tmp_path / "results" / "rows.jsonl"
    old, new = ([{**row(peer, 0, 10.0, 5.0), "commit": name} for peer in "ab"] for name in ("old", "new"))
    assert agents.earlier_rounds(record, "old") == 0
    assert agents.add(old, record) == old
    first = record.read_text()
    found = agents.add(new, record)
    assert record.read_text().startswith(first)
    assert (found, agents.newest(found)) == (old + new, new)
    assert (agents.earlier_rounds(record, "new"), agents.earlier_rounds(record, "another")) == (1, 0)


def test_what_asks_for_too_much_is_installed_without_it(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments, calls = bench["environments"], []
    monkeypatch.setattr(environments, "pip", lambda python, *words: calls.append(words))
    kit = environments.Kit(("numpy==1.23.5", "six"), bare=("old==1",))
    environments._install(tmp_path / "python", tmp_path, kit)
    pinned = f"--constraint={tmp_path / 'constraints.txt'}"
    assert calls == [
        (pinned, environments.TORCH, "numpy==1.23.5"),
        (pinned, "numpy==1.23.5", "six"),
        ("--no-deps", "old==1"),
    ]


@pytest.mark.slow
def test_our_side_is_measured_in_a_process_of_its_own(bench: Bench) -> None:
    agents = bench["agents"]
    found = agents.measure(Path(sys.executable), agents.OURS, "collect", 64, 0.1)
    assert found["steps_per_cpu_second"] > 0.0
    assert found["versions"]["torch"]
    assert (found["workload"], found["agents"], found["peer"]) == ("collect", 64, agents.OURS)
