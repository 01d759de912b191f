"""timers.json: a tree of times that add up, and the range of each metric."""

from __future__ import annotations

import json
from pathlib import Path

from quintain.behaviors.timers_file import TimersFile


def test_times_are_a_tree_that_adds_up(tmp_path: Path) -> None:
    timers = TimersFile(tmp_path)
    timers.begin -= 100.0
    for value in (2.0, 5.0, 3.0):
        timers.reported({"train/policy_loss": value})
    totals = {"advance": (60.0, 6), "collect": (40.0, 5), "update": (15.0, 4), "act": (10.0, 2), "env": (25.0, 2)}
    timers.save(totals, {"torch": "2"})
    root = json.loads((tmp_path / "timers.json").read_text())
    assert root["name"] == "root"
    assert root["total"] >= 100.0
    assert root["count"] == 1
    assert root["gauges"] == {"train/policy_loss": {"value": 3.0, "min": 2.0, "max": 5.0, "count": 3}}
    assert root["metadata"]["torch_version"] == "2"
    assert int(root["metadata"]["end_time_seconds"]) >= int(root["metadata"]["start_time_seconds"]) > 0
    assert isinstance(root["metadata"]["command_line_arguments"], str)
    [learning] = root["children"].values()
    assert (learning["total"], learning["self"]) == (60.0, 0.0)
    advance = learning["children"]["advance"]
    assert (advance["count"], advance["self"]) == (6, 60.0 - 40.0 - 15.0)
    assert advance["children"]["update"] == {"total": 15.0, "count": 4, "self": 15.0}
    collect = advance["children"]["collect"]
    assert collect["self"] == 40.0 - 10.0 - 25.0
    assert set(collect["children"]) == {"act", "env"}


def test_what_ran_beside_takes_nothing_from_what_it_ran_beside(tmp_path: Path) -> None:
    timers = TimersFile(tmp_path)
    timers.save({"collect": (4.0, 1), "act": (9.0, 1)}, {}, are_parallel=frozenset({"act"}))
    root = json.loads((tmp_path / "timers.json").read_text())
    [learning] = root["children"].values()
    assert learning["children"]["collect"]["self"] == 4.0
    assert learning["children"]["collect"]["children"]["act"]["is_parallel"] is True
