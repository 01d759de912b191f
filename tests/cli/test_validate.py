"""Checks `quintain validate`: rows, exit codes, folders, and that a folder cannot make it import code."""

import json

import pytest

from quintain.cli.app import main

GOOD = "experiment: {env: {type: gym, id: A-v1}, behaviors: {b: {algorithm: ppo}}}\n"
BAD = "experiment: {env: {type: gym, id: A-v1}, behaviors: {b: {algorithm: ppo}}, sead: 1}\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.yaml").write_text(GOOD)
    (tmp_path / "a.yml").write_text(BAD)
    (tmp_path / "deep" / "c.yaml").write_text(GOOD)
    (tmp_path / "notes.txt").write_text("not a run file")
    return tmp_path


def rows(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_good_file_ends_with_0(folder, capsys):
    assert main(["validate", str(folder / "b.yaml")]) == 0
    assert capsys.readouterr().out == "1 checked, 0 bad\n"


def test_a_bad_file_ends_with_2_and_says_why(folder, capsys):
    file = folder / "a.yml"
    assert main(["validate", str(file)]) == 2
    assert capsys.readouterr().out == (
        f'error[E0203]: {file}:1:76: experiment.sead: unknown setting; did you mean "seed"?\n1 checked, 1 bad\n'
    )


def test_a_folder_gives_one_row_for_each_run_file(folder, capsys):
    assert main(["validate", str(folder), "--jsonl"]) == 2
    found = rows(capsys)
    assert [(row["file"], row["ok"]) for row in found] == [
        (str(folder / "a.yml"), False),
        (str(folder / "b.yaml"), True),
        (str(folder / "deep" / "c.yaml"), True),
    ]
    assert found[1]["errors"] == []
    assert [list(row) for row in found] == [["file", "ok", "errors"]] * 3


def test_json_is_one_list(folder, capsys):
    assert main(["validate", str(folder / "b.yaml"), str(folder / "deep"), "--json"]) == 0
    assert [row["ok"] for row in json.loads(capsys.readouterr().out)] == [True, True]


def test_every_problem_of_a_file_is_in_its_row(tmp_path, capsys):
    file = tmp_path / "a.yaml"
    file.write_text(BAD + "run: {id: a/b}\n")
    assert main(["validate", str(file), "--jsonl"]) == 2
    errors = rows(capsys)[0]["errors"]
    assert len(errors) == 2
    assert "experiment.sead" in errors[0]
    assert "run.id" in errors[1]


def test_a_missing_file_is_a_bad_one(tmp_path, capsys):
    assert main(["validate", str(tmp_path / "none.yaml"), "--jsonl"]) == 2
    assert "cannot read" in rows(capsys)[0]["errors"][0]


def test_an_empty_folder_is_a_mistake(tmp_path, capsys):
    assert main(["validate", str(tmp_path)]) == 2
    assert "no file ends in .yaml or .yml" in capsys.readouterr().err


def test_files_found_in_a_folder_import_nothing(tmp_path, monkeypatch, capsys):
    marker = tmp_path / "imported"
    (tmp_path / "a_trap.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    (tmp_path / "a.yaml").write_text(
        "experiment: {env: {type: gym, id: A}, behaviors: {b: {algorithm: 'a_trap:Trap'}}}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["validate", ".", "--jsonl"]) == 2
    assert "E0407" in rows(capsys)[0]["errors"][0]
    assert not marker.exists()
    main(["validate", ".", "--jsonl", "--allow", "a_trap:Trap"])
    assert marker.exists()
