"""Stored conversations are checked before they are shown or trained on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quintain.cli.transcripts import transcripts
from quintain.errors import QuintainError, RunDirectoryError
from quintain.text.archive import read_conversations
from quintain.text.sampling import transcript
from tests.text.running import settings, train

NAME = "train-000000.jsonl"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    train(folder, settings(1, rl={"rollouts_per_iteration": 2}, text_rl={"test_scheme": "none"}))
    return folder


def changed(run: Path, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    first, *rest = (run / "r" / "rollouts" / NAME).read_text().splitlines()
    record = json.loads(first)
    change(record)
    path = folder / NAME
    path.write_text("\n".join([json.dumps(record), *rest]) + "\n")
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda talk: talk.update(rewards=[{"prover": "a"}]), "a reward is no number"),
        (lambda talk: talk.update(rewards=7), "rewards are no list"),
        (lambda talk: talk.update(question=3), "a text is int"),
        (lambda talk: talk.update(question="\ud800"), "surrogates"),
        (lambda talk: talk.update(iteration=5), "a conversation of iteration 5"),
        (lambda talk: talk.update(split="other"), "neither train nor test"),
        (lambda talk: talk["turns"][0].update(round=-1), "a count"),
        (lambda talk: talk["turns"][0].update(decision=3), "a decision"),
        (lambda talk: talk["turns"][0].update(messages={"main": 4}), "a text is int"),
        (lambda talk: talk["turns"][0]["prompt"][0].update(content=None), "a text is NoneType"),
        (lambda talk: talk.update(more=1), "unexpected keyword"),
    ],
)
def test_a_damaged_conversation_is_an_error_in_one_line(
    change: Callable[[dict[str, Any]], object], said: str, run: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunDirectoryError, match=said) as raised:
        read_conversations(changed(run, tmp_path, change))
    assert raised.value.code == "E0308"
    assert f"{NAME}:1: " in str(raised.value)


def test_what_could_move_the_cursor_is_escaped(run: Path, tmp_path: Path) -> None:
    def change(talk: dict[str, Any]) -> None:
        talk.update(question="\x1b[2Jq\u202e", point_id="\x1b]0;title\x07\nnext")
        talk["turns"][0].update(raw="\x9b31m", agent="\rverifier")

    [first, _] = read_conversations(changed(run, tmp_path, change)).values()
    shown = "".join(transcript(first))
    assert shown.isprintable()
    assert "\\x1b[2Jq\\u202e" in shown


def test_only_files_of_conversations_are_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("\x1b[31mtrain-000007.jsonl", "..-000008.jsonl"):
        (run / "r" / "rollouts" / name).write_text("{}\n")
    transcripts("r", runs_dir=run)
    shown = capsys.readouterr().out
    assert shown.count("== iteration 0, train ") == 2
    assert "\x1b" not in shown


@pytest.mark.parametrize("wanted", [{"split": "test"}, {"iteration": 99}, {"index": 2}])
def test_what_is_not_there_is_told_with_what_is(wanted: dict[str, Any], run: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"has none of these conversations; it has train of iteration 0$"):
        transcripts("r", runs_dir=run, **wanted)


def test_a_dry_run_has_no_conversations_yet(tmp_path: Path) -> None:
    train(tmp_path, settings(2, api={"dry_run": True}))
    with pytest.raises(RunDirectoryError, match="has no conversations yet: a run of text models"):
        transcripts("r", runs_dir=tmp_path)


def test_a_conversation_of_another_run_is_not_trained_on(run: Path, tmp_path: Path) -> None:
    loop = settings(2, seed=6, rl={"rollouts_per_iteration": 2}, api={"max_wait_seconds": 0.0},
                    providers={"scripted": {"faults": {"chat": ["timeout"]}}})  # fmt: skip
    with pytest.raises(QuintainError, match="max_wait_seconds"):
        train(tmp_path, loop)
    (tmp_path / "r" / "rollouts" / NAME).write_text((run / "r" / "rollouts" / NAME).read_text())
    with pytest.raises(RunDirectoryError, match="is not of this run") as raised:
        train(tmp_path, None)
    assert raised.value.code == "E0308"
