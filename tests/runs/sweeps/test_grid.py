"""Grids: combinations, ids, seeds and the settings of every run, worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.errors import SettingsError
from quintain.runs.sweeps.grid import Combination, Grid
from quintain.runs.sweeps.plan import plan_runs
from quintain.settings.tree import RunFile

PPO = "train: ppo CartPole-v1\n"


def grid_of(tmp_path: Path, text: str, *overrides: str, name: str = "grid.yaml") -> Grid:
    path = tmp_path / name
    path.write_text(text)
    return Grid.load(path, overrides)


def test_every_value_meets_every_other_and_the_last_axis_changes_fastest(tmp_path: Path) -> None:
    grid = grid_of(
        tmp_path,
        PPO + "grid:\n  lr: [0.1, 0.2]\n  net: {small: {hidden_sizes: [8]}, large: {hidden_sizes: [16, 16]}}\nseeds: 2",
    )
    assert [each.shown for each in grid.combinations] == [
        {"lr": 0.1, "net": "small"},
        {"lr": 0.1, "net": "large"},
        {"lr": 0.2, "net": "small"},
        {"lr": 0.2, "net": "large"},
    ]
    assert grid.combinations[1].settings == {"lr": 0.1, "hidden_sizes": [16, 16]}
    runs = plan_runs(grid)
    assert [run.run_id for run in runs] == [
        "lr-0.1-net-small-s0",
        "lr-0.1-net-small-s1",
        "lr-0.1-net-large-s0",
        "lr-0.1-net-large-s1",
        "lr-0.2-net-small-s0",
        "lr-0.2-net-small-s1",
        "lr-0.2-net-large-s0",
        "lr-0.2-net-large-s1",
    ]
    # As the command line would make the sixth of them.
    assert runs[5].run_file == RunFile.from_names("ppo", "CartPole-v1", "lr=0.2", "hidden_sizes=[8]", "seed=1")


def test_a_list_of_combinations_is_taken_as_it_is(tmp_path: Path) -> None:
    text = PPO + "grid:\n- {learning_rate: 0.1, clip_coef: 0.3}\n- {clip_coef: 0.1}\nseeds: [7]\n"
    runs = plan_runs(grid_of(tmp_path, text))
    assert [run.run_id for run in runs] == ["learning_rate-0.1-clip_coef-0.3-s7", "clip_coef-0.1-s7"]
    assert runs[1].run_file == RunFile.from_names("ppo", "CartPole-v1", "clip_coef=0.1", "seed=7")


def test_json_is_read_too_and_seeds_may_stand_in_the_grid(tmp_path: Path) -> None:
    text = json.dumps({"train": "ppo CartPole-v1", "grid": {"seed": [3, 1], "gamma": [0.9]}})
    runs = plan_runs(grid_of(tmp_path, text, name="grid.json"))
    assert [(run.run_id, run.seed) for run in runs] == [("gamma-0.9-s3", 3), ("gamma-0.9-s1", 1)]


def test_a_run_file_stands_beside_the_grid_and_keeps_its_seed(tmp_path: Path) -> None:
    RunFile.from_names("ppo", "CartPole-v1", "seed=11", "num_envs=2").save(tmp_path / "base.yaml")
    text = "train: base.yaml\nsettings: {gamma: 0.5, clip_coef: 0.4}\ngrid: {gamma: [0.9, 0.8]}\n"
    first, second = plan_runs(grid_of(tmp_path, text, "clip_coef=0.1"))
    assert (first.run_id, second.run_id) == ("gamma-0.9-s11", "gamma-0.8-s11")
    # The grid over the settings of all runs, and the command line over both.
    wanted = RunFile.from_names("ppo", "CartPole-v1", "seed=11", "num_envs=2", "gamma=0.8", "clip_coef=0.1")
    assert second.run_file.experiment == wanted.experiment


def test_ids_stay_the_same_when_a_grid_grows_and_differ_where_text_does_not(tmp_path: Path) -> None:
    small = plan_runs(grid_of(tmp_path, PPO + "grid: {lr: [0.1]}\nseeds: 2\n"))
    large = plan_runs(grid_of(tmp_path, PPO + "grid: {lr: [0.3, 0.1, 0.2]}\nseeds: 3\n"))
    assert {run.run_id for run in small} < {run.run_id for run in large}
    lists = [Combination({"hidden_sizes": sizes}, {}).run_id(0) for sizes in ([64, 64], [6, 464], "64, 64")]
    assert len(set(lists)) == 3
    assert all(name.startswith("hidden_sizes-") and name.endswith("-s0") for name in lists)
    long = Combination({"a_rather_long_name_of_an_axis_of_a_grid_with_many_words": 1.5, "and_another": True}, {})
    assert len(long.run_id(12345)) <= 64
    assert long.run_id(12345).endswith("-s12345")


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (
            PPO + "grid: {learning_rte: [1, 2]}",
            "E0203",
            'grid.yaml: learning_rte=1: no setting is called "learning_rte"',
        ),
        (PPO, "E0270", "the grid is empty"),
        (PPO + "grid: {}", "E0270", "the grid is empty"),
        (PPO + "grid: {lr: []}", "E0205", "grid.yaml:2:1: grid: lr lists no value"),
        (PPO + "grid: 3", "E0205", "grid.yaml:2:1: grid: expected settings with lists of values"),
        (PPO + "grid: {lr: [0.001, 1e-3]}", "E0270", "two combinations are equal: lr=0.001 and lr=0.001"),
        (PPO + "grid: [{lr: 0.1}, {learning_rate: 0.1}]", "E0270", "equal: lr=0.1 and learning_rate=0.1"),
        (PPO + "grid: {net: {a b: {lr: 1}}}", "E0205", "need names"),
        (PPO + "grid: {net: {a: 1}}", "E0205", "and a mapping of settings each; found a"),
        (PPO + "grid: {hidden_sizes: [64, 64]}", "E0205", "stands in the list of values, such as [[64, 64]"),
        (PPO + "seeds: 0", "E0205", "expected a number of seeds"),
        (PPO + "seeds: true", "E0205", "expected a number of seeds"),
        (PPO + "seeds: [1, 1]", "E0205", "seed 1 is listed twice"),
        (PPO + "seeds: 2\ngrid: {seed: [1]}", "E0270", "seeds and grid.seed both list seeds"),
        (PPO + "sedes: 2", "E0203", 'sedes: unknown setting; did you mean "seeds"?'),
        ("grid: {lr: [1]}", "E0205", "train: not set"),
        ("experiment: {seed: 1}", "E0270", "this is a run file, not a grid"),
        ("[1]", "E0202", "found a list, expected a mapping with train and grid"),
        ("train: none.yaml\nseeds: 2", "E0210", "none.yaml: cannot read"),
        ("train: pp CartPole-v1\nseeds: 2", "E0204", 'did you mean "ppo"'),
        ("train: ppo CartPol-v1\nseeds: 2", "E0204", 'did you mean "CartPole-v1"'),
        (PPO + "grid: {lr: [0.1]}\nseeds: 10001", "E0205", "seeds: expected"),
        (PPO + "grid: {lr: [0.1, 0.2]}\nseeds: 5001", "E0270", "the grid has 10,002 runs, expected at most 10,000"),
        (PPO + "seeds: 2\nmode: most", "E0205", "mode: found"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, code: str, part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        plan_runs(grid_of(tmp_path, text))
    assert part in caught.value.message
    assert caught.value.code == code
    assert "\n" not in caught.value.message
