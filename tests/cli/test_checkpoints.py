from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quintain.cli.checkpoints import app
from quintain.errors import CheckpointError, RunDirectoryError
from quintain.services.checkpoints import manager as checkpoints
from tests.services.samples import committed, state_at


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    manager = committed(tmp_path / "a1" / "checkpoints", 0, 512)
    manager.commit(state_at(1024), step=1024, about={}, is_best=True)
    manager.commit(state_at(2048), step=2048, about={})
    return tmp_path


def run(runs: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--runs-dir", str(runs)])


def damage(runs: Path, name: str) -> None:
    (runs / "a1" / "checkpoints" / name / "state.json").write_bytes(b"{}")


class TestList:
    def test_json_has_the_promised_keys_first(self, runs: Path) -> None:
        damage(runs, "000002-step-512")
        result = run(runs, "list", "a1", "--json")
        assert result.exit_code == 0
        rows = json.loads(result.stdout)
        assert [list(row)[:3] for row in rows] == [["path", "step", "valid"]] * 4
        assert [(row["step"], row["valid"]) for row in rows] == [(0, True), (512, False), (1024, True), (2048, True)]
        assert rows[0]["path"] == str(runs / "a1" / "checkpoints" / "000001-step-0")

    def test_text(self, runs: Path) -> None:
        damage(runs, "000002-step-512")
        lines = run(runs, "list", "a1").stdout.splitlines()
        assert [line.split()[:2] for line in lines] == [
            ["ok", "000001-step-0"],
            ["damaged", "000002-step-512"],
            ["ok", "000003-step-1024"],
            ["ok", "000004-step-2048"],
        ]
        assert "state.json: 2 bytes" in lines[1]
        assert lines[2].endswith("best")

    def test_returns_and_the_one_that_is_best(self, tmp_path: Path) -> None:
        manager = checkpoints.CheckpointManager(tmp_path / "a1" / "checkpoints", keep=9)
        evaluated = {"scores": [["default", 412.63, 10, "evaluation"]]}
        trained = {"scores": [["Goalie", 1.0, 100, "training"], ["Striker", 0.0123, 100, "training"]]}
        # What a manifest says is not to be trusted.
        odd = {"scores": [["default", 10**400, 1, "training"], [1, 2], "text", {"a": 1}, ["a", "b", "c", "d"]]}
        for step, about, is_best in (
            (0, {}, True),
            (2048, evaluated, True),
            (4096, trained, False),
            (8192, odd, False),
        ):
            manager.commit(state_at(step), step=step, about=about, is_best=is_best)
        lines = [" ".join(line.split()) for line in run(tmp_path, "list", "a1").stdout.splitlines()]
        assert lines[:4] == [
            "ok 000001-step-0 step 0",
            "ok 000002-step-2048 step 2 048 return 412.6 over 10 evaluation episodes best",
            "ok 000003-step-4096 step 4 096 return Goalie 1.0, Striker 0.0123 over 100 training episodes",
            "ok 000004-step-8192 step 8 192",
        ]
        assert "judged on the 10 evaluation episodes that chose it" in lines[4]
        assert f"quintain eval a1@best --runs-dir {tmp_path} --episodes 100" in lines[4]
        rows = json.loads(run(tmp_path, "list", "a1", "--json").stdout)
        assert [row["is_best"] for row in rows] == [False, True, False, False]
        assert rows[1]["scores"] == [{"behavior": "default", "mean": 412.63, "episodes": 10, "kind": "evaluation"}]

    def test_an_empty_run_has_an_empty_list(self, tmp_path: Path) -> None:
        (tmp_path / "a1" / "checkpoints").mkdir(parents=True)
        assert json.loads(run(tmp_path, "list", "a1", "--json").stdout) == []

    def test_an_unknown_run_is_an_error(self, runs: Path) -> None:
        result = run(runs, "list", "b1")
        assert isinstance(result.exception, RunDirectoryError)


class TestVerify:
    @pytest.mark.parametrize("target", ["a1", "a1@best", "a1@512", "{}/a1", "{}/a1/checkpoints/000001-step-0"])
    def test_whole_ones_pass(self, runs: Path, target: str) -> None:
        result = run(runs, "verify", target.format(runs))
        assert result.exit_code == 0, result.exception
        assert all(line.startswith("ok ") for line in result.stdout.splitlines())

    @pytest.mark.parametrize(
        "target", ["a1", "a1@512", "{}/a1", "{}/a1/checkpoints", "{}/a1/checkpoints/000002-step-512"]
    )
    def test_a_damaged_one_is_an_error_with_its_name(self, runs: Path, target: str) -> None:
        damage(runs, "000002-step-512")
        error = run(runs, "verify", target.format(runs)).exception
        assert isinstance(error, CheckpointError)
        assert "000002-step-512" in error.message
        assert (error.code, error.exit_code) == ("E0401", 4)

    def test_several_damaged_ones_are_all_named(self, runs: Path) -> None:
        damage(runs, "000002-step-512")
        damage(runs, "000003-step-1024")
        error = run(runs, "verify", "a1").exception
        assert isinstance(error, CheckpointError)
        assert "2 of 4 checkpoints" in error.message
        assert "000003-step-1024" in error.message

    def test_json_is_one_document_also_when_damaged(self, runs: Path) -> None:
        damage(runs, "000002-step-512")
        result = run(runs, "verify", "a1", "--json")
        assert result.exit_code == 4
        assert [row["valid"] for row in json.loads(result.stdout)] == [True, False, True, True]

    @pytest.mark.parametrize("target", ["{}/gone", "{}/a1/checkpoints/000009-step-1", "{}", "a1@77"])
    def test_nothing_there_is_exit_4(self, runs: Path, target: str) -> None:
        error = run(runs, "verify", target.format(runs)).exception
        assert isinstance(error, CheckpointError)
        assert error.exit_code == 4

    def test_a_pickle_is_refused(self, runs: Path) -> None:
        (runs / "model.zip").write_bytes(b"PK\x03\x04")
        error = run(runs, "verify", str(runs / "model.zip")).exception
        assert isinstance(error, CheckpointError)
        assert error.code == "E0406"


class TestDigest:
    def test_of_a_run_is_that_of_its_latest(self, runs: Path) -> None:
        expected = checkpoints.digest_of(state_at(2048))
        assert re.fullmatch(r"[0-9a-f]{64}", expected)
        for target in ("a1", str(runs / "a1"), str(runs / "a1" / "checkpoints" / "000004-step-2048")):
            assert run(runs, "digest", target).stdout == f"{expected}\n"

    def test_of_the_best(self, runs: Path) -> None:
        assert run(runs, "digest", "a1@best").stdout.strip() == checkpoints.digest_of(state_at(1024))

    def test_json(self, runs: Path) -> None:
        found = json.loads(run(runs, "digest", "a1", "--json").stdout)
        assert found["digest"] == checkpoints.digest_of(state_at(2048))
        assert found["path"].endswith("000004-step-2048")

    def test_says_when_the_newest_is_damaged(self, runs: Path) -> None:
        damage(runs, "000004-step-2048")
        result = run(runs, "digest", "a1")
        assert result.stdout.strip() == checkpoints.digest_of(state_at(1024))
        assert "warning[W0401]: checkpoint 000004-step-2048 is damaged" in result.stderr
