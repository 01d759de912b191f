"""The summary of a sweep: means and intervals computed by hand from the metrics of runs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from quintain.errors import QuintainError
from quintain.runs.sweeps.directory import SweepDirectory
from quintain.runs.sweeps.table import summarize

# Student's t for 95 %: 12.7062047 with one degree of freedom, 4.30265273 with two (any table).
# 10, 20, 30: mean 20, standard deviation 10, half width 4.30265273 * 10 / sqrt(3) = 24.8413771.
# 100, 102: mean 101, standard deviation sqrt(2), half width 12.7062047 * sqrt(2) / sqrt(2) = 12.7062047.
# 15, 85: mean 50, standard deviation 70 / sqrt(2), half width 12.7062047 * 35 = 444.717166.
VALUES = {0.1: [10.0, 20.0, 30.0], 0.2: [100.0, 102.0, None], 0.3: [15.0, 85.0, 1000.0]}
STATES = {(0.2, 2): "failed", (0.3, 2): "running"}


def sweep_in(folder: Path, mode: str = "max") -> SweepDirectory:
    """Writes a sweep by hand: the last seed of 0.2 failed, that of 0.3 was killed in the middle."""
    runs = [
        {"id": f"lr-{rate}-s{seed}", "combination": {"lr": rate}, "seed": seed} for rate in VALUES for seed in range(3)
    ]
    plan = {"axes": ["lr"], "metric": "eval/mean_reward", "mode": mode, "runs": runs}
    place = SweepDirectory(folder / "hand")
    place.path.mkdir()
    (place.path / "sweep.json").write_text(json.dumps(plan))
    (place.path / "failures.json").write_text(json.dumps({"lr-0.2-s2": "error[E0500]: it broke"}))
    for rate, values in VALUES.items():
        for seed, value in enumerate(values):
            run = place.runs / f"lr-{rate}-s{seed}"
            run.mkdir(parents=True)
            state = STATES.get((rate, seed), "finished")
            if state != "failed":
                # A pid that no process has: larger than Linux allows.
                (run / "status.json").write_text(json.dumps({"state": state, "step": 64, "pid": 2**22 + 1}))
            rows = [{"step": 32, "eval/mean_reward": 7.0}, {"step": 64, "eval/mean_reward": value}, {"step": 64}]
            (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return place


def test_means_and_intervals_are_those_of_finished_seeds(tmp_path: Path) -> None:
    table = summarize(sweep_in(tmp_path))
    assert [row.combination["lr"] for row in table.rows] == [0.2, 0.3, 0.1]
    assert [row.mean for row in table.rows] == pytest.approx([101.0, 50.0, 20.0])
    assert [row.low for row in table.rows] == pytest.approx([88.2937953, -394.717166, -4.8413771])
    assert [row.high for row in table.rows] == pytest.approx([113.7062047, 494.717166, 44.8413771])
    assert [row.num_finished for row in table.rows] == [2, 2, 3]
    assert [row.is_best for row in table.rows] == [True, False, False]
    assert [row.is_near for row in table.rows] == [False, True, False]
    assert table.best is table.rows[0]
    (failed,) = table.failed
    assert (failed.id, failed.failure, failed.value) == ("lr-0.2-s2", "error[E0500]: it broke", None)
    assert {run.id: run.state for run in table.runs}["lr-0.3-s2"] == "interrupted"


def test_the_smallest_can_be_best(tmp_path: Path) -> None:
    table = summarize(sweep_in(tmp_path, mode="min"))
    assert [row.combination["lr"] for row in table.rows] == [0.1, 0.3, 0.2]
    assert table.best is not None
    assert table.best.mean == pytest.approx(20.0)


def test_one_seed_has_no_interval_and_no_run_no_mean(tmp_path: Path) -> None:
    place = sweep_in(tmp_path)
    for name in ("lr-0.1-s1", "lr-0.1-s2", "lr-0.3-s0", "lr-0.3-s1"):
        (place.runs / name / "status.json").unlink()
    rows = {row.combination["lr"]: row for row in summarize(place).rows}
    assert (rows[0.1].mean, rows[0.1].low, rows[0.1].high) == (10.0, None, None)
    assert (rows[0.3].mean, rows[0.3].num_finished) == (None, 0)
    assert {run.state for run in rows[0.3].runs} == {"waiting", "interrupted"}


def test_tables_for_people_and_for_programs_say_the_same(tmp_path: Path) -> None:
    place = sweep_in(tmp_path)
    table = summarize(place)
    table.save(place)
    text = table.to_text().splitlines()
    assert text[0].split() == ["lr", "seeds", "eval/mean_reward", "[95", "%]", "min", "max"]
    assert text[1].split() == ["*", "0.2", "2/3", "101", "[88,", "114]", "100.0", "102.0"]
    assert text[2].split() == ["~", "0.3", "2/3", "50", "[-395,", "495]", "15.0", "85.0"]
    assert "9 runs: 1 failed, 7 finished, 1 interrupted" in text[4]
    assert text[5] == "failed   lr-0.2-s2: error[E0500]: it broke"
    assert "| * | 0.2 | 2/3 | 101 [88, 114] | 100.0 | 102.0 |" in (place.path / "summary.md").read_text()
    rows = list(csv.DictReader(io.StringIO((place.path / "summary.csv").read_text())))
    assert [(row["lr"], float(row["mean"]), row["best"]) for row in rows] == [
        ("0.2", 101.0, "1"),
        ("0.3", 50.0, "0"),
        ("0.1", 20.0, "0"),
    ]
    runs = {row["run"]: row for row in csv.DictReader(io.StringIO((place.path / "runs.csv").read_text()))}
    assert (runs["lr-0.2-s2"]["state"], runs["lr-0.2-s2"]["failure"]) == ("failed", "error[E0500]: it broke")
    assert runs["lr-0.1-s2"]["eval/mean_reward"] == "30.0"
    stored = json.loads((place.path / "summary.json").read_text())
    assert stored["rows"][0]["mean"] == 101.0


@pytest.mark.parametrize(
    "spoiled",
    ['{"axes": []', "[]", '{"axes": ["lr"], "metric": "m", "mode": "max", "runs": []}', None, "[" * 100_000],
)
def test_a_spoiled_plan_is_one_line(tmp_path: Path, spoiled: str | None) -> None:
    place = sweep_in(tmp_path)
    if spoiled is None:
        plan = json.loads((place.path / "sweep.json").read_text())
        plan["runs"][0]["id"] = "../../elsewhere"
        spoiled = json.dumps(plan)
    (place.path / "sweep.json").write_text(spoiled)
    with pytest.raises(QuintainError):
        summarize(place)


def test_spoiled_files_of_runs_cost_their_own_number_only(tmp_path: Path) -> None:
    place = sweep_in(tmp_path)
    (place.path / "failures.json").write_text("[1]")
    (place.runs / "lr-0.1-s0" / "metrics.jsonl").write_text('"eval/mean_reward"\n{"eval/mean_reward": "x"}\n')
    (place.runs / "lr-0.1-s1" / "status.json").write_text("{}")
    rows = {row.combination["lr"]: row for row in summarize(place).rows}
    assert (rows[0.1].mean, rows[0.1].num_finished) == (30.0, 2)
