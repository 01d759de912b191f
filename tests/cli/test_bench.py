"""`quintain bench`: the arithmetic by hand, and the command on tiny runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quintain.cli.app import main
from quintain.runs.env_limits import ACT, ENV, LEARN, OTHER, Pace, RawRate, advice, limits_of, pace_of
from quintain.settings.tree import RunFile

TINY = ("num_lanes=2", "num_steps=16", "batch_size=16", "num_epochs=2", "--seconds", "0.05")


def row(total_seconds: float, env: float, act: float, learn: float) -> dict[str, float]:
    return {
        "time/total_seconds": total_seconds,
        "time/env_fraction": env,
        "time/act_fraction": act,
        "time/learn_fraction": learn,
        "time/other_fraction": 1.0 - env - act - learn,
    }


def test_pace_leaves_out_the_first_row_and_weighs_the_others_by_their_length() -> None:
    rows = [(100, row(5.0, 1.0, 0.0, 0.0)), (200, row(6.0, 0.5, 0.25, 0.25)), (900, row(9.0, 0.1, 0.1, 0.6))]
    pace = pace_of(rows)
    # 800 steps in 4 s, so 5000 us a step; a quarter of the time is the second row's, three quarters the third's.
    assert pace.steps_per_second == 200.0
    assert pace.microseconds[ENV] == pytest.approx(5000 * (0.25 * 0.5 + 0.75 * 0.1))
    assert pace.microseconds[LEARN] == pytest.approx(5000 * (0.25 * 0.25 + 0.75 * 0.6))
    assert sum(pace.microseconds.values()) == pytest.approx(5000)
    assert pace.bottleneck == LEARN


def test_limits_take_the_environment_as_fast_as_it_is_alone() -> None:
    pace = Pace(10_000.0, {ENV: 40.0, ACT: 20.0, LEARN: 30.0, OTHER: 10.0})
    limits = limits_of(RawRate(8, 0, 33_333.333333333336), pace)
    # Alone a step costs 30 us: 30 + 20 + 30 = 80 us one after the other, 50 us with learning beside it.
    assert limits.serial == pytest.approx(12_500.0)
    assert limits.overlapped == pytest.approx(20_000.0)
    assert limits.fraction == pytest.approx(0.8)


def bound_by(what: str) -> Pace:
    return Pace(1000.0, {name: 700.0 if name == what else 100.0 for name in (ENV, ACT, LEARN, OTHER)})


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        (ENV, "workers: run.env_workers.num_workers=2 steps 1.5 x as fast here"),
        (ACT, "more lanes: num_lanes=32."),
        (LEARN, "fewer epochs: num_epochs=5 halves"),
        (LEARN, "larger minibatches: batch_size=256"),
        (OTHER, "run.report.every_updates"),
    ],
)
def test_advice_is_about_the_largest_cost(what: str, expected: str) -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1")
    raw = (RawRate(1, 0, 900.0), RawRate(8, 0, 1000.0), RawRate(8, 2, 1500.0))
    assert expected in "\n".join(advice(run_file, raw, bound_by(what)))


def test_workers_that_are_slower_are_not_recommended() -> None:
    raw = (RawRate(8, 0, 1000.0), RawRate(8, 2, 400.0))
    said = advice(RunFile.from_names("ppo", "CartPole-v1"), raw, bound_by(ENV))
    assert "no workers: 2 of them step only 0.4 x as fast here" in said
    assert not any(line.startswith("workers:") for line in said)


def test_an_environment_that_steps_all_its_lanes_gets_no_advice_about_lanes_of_gymnasium() -> None:
    said = advice(
        RunFile.from_names("ppo", "CartPole-v1", "vectorization=native"), (RawRate(8, 0, 1.0),), bound_by(ENV)
    )
    assert not any("vectorization=native" in line for line in said)


def test_the_command_says_all_numbers_on_one_screen_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "tests.envs.fragile:Walk", *TINY]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tests.envs.fragile:Walk · ppo · 2 lanes · 1 thread")
    for beginning in ("environment alone, 1 lane ", "environment alone, 2 lanes ", "training ", "limit, one ", "try "):
        assert any(line.startswith(beginning) for line in lines), beginning
    assert len(lines) <= 24
    assert list(tmp_path.iterdir()) == []


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "CartPole-v1", "vectorization=native", "--json", *TINY]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [rate["num_lanes"] for rate in found["raw"]] == [1, 2]
    assert found["limits"]["serial"] <= found["limits"]["overlapped"]
    assert set(found["training"]["microseconds"]) == {ENV, ACT, LEARN, OTHER}
    assert found["bottleneck"] in found["training"]["microseconds"]


@pytest.mark.parametrize(
    ("words", "exit_code", "line"),
    [
        (["CartPoel-v1"], 2, 'did you mean "CartPole-v1"'),
        (["CartPole-v1", "num_lane=3"], 2, "num_lanes"),
        (["tests.envs.fragile:CannotBeMade"], 5, "cannot be created"),
    ],
)
def test_mistakes_end_in_one_line(
    words: list[str], exit_code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words]) == exit_code
    printed = capsys.readouterr()
    assert line in printed.err.splitlines()[0]
    assert "Traceback" not in printed.err


def test_masked_actions_are_played_legally(capsys: pytest.CaptureFixture[str]) -> None:
    # The environment asserts that no action is forbidden, and the first fault ends the run.
    words = ["tests.structured:Structured", "kwargs={masks: info}", "run.env_workers.max_restarts=1"]
    assert main(["bench", *words, "--json", *TINY]) == 0
    assert json.loads(capsys.readouterr().out)["raw"]
