"""Settings files made to keep the reader busy: the cost grows with the size of the file, whatever is in it."""

from __future__ import annotations

import time
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

import pytest

from quintain.core import registry
from quintain.errors import QuintainError
from quintain.settings.tree import RunFile


def run_file(env: str = "", algorithm: str = "", behavior: str = "", more: str = "") -> str:
    return (
        f"experiment:\n  env: {{type: gym, id: CartPole-v1{env}}}\n"
        f"  behaviors: {{default: {{algorithm: {{type: ppo{algorithm}}}{behavior}}}}}\n{more}"
    )


def listed(count: int, item: str) -> str:
    return ", ".join(item.replace("#", str(number)) for number in range(count))


SHAPES: dict[str, Callable[[int], str]] = {
    "one long value": lambda n: run_file(more=f"  seed: {'x' * n}\n"),
    "one long value of code": lambda n: run_file(env=f", kwargs: {{x: '{'a:' * (n // 2)}'}}"),
    "one long value of digits": lambda n: run_file(env=f", kwargs: {{x: q{'1' * n}}}"),
    "a long count": lambda n: run_file(more=f"  budget: {{env_steps: {'1' * n}k}}\n"),
    "a long name": lambda n: run_file().replace("type: ppo", f"type: {'p' * n}"),
    "a long key": lambda n: run_file(algorithm=f", ? {'l' * n} : 1"),
    "many values": lambda n: run_file(env=f", kwargs: {{{listed(n // 16, 'k#: 1')}}}"),
    "many names of code": lambda n: run_file(env=f", kwargs: {{x: [{listed(n // 16, 'a:b#')}]}}"),
    "many unknown keys": lambda n: run_file(algorithm=f", {listed(n // 24, 'learning_rat#: 1')}"),
    "many parts": lambda n: run_file(behavior=f", reward_signals: {{{listed(n // 64, 's#: extrinsic')}}}"),
    "many unknown parts": lambda n: run_file(behavior=f", events: [{listed(n // 64, 'evaluat')}]"),
    "many behaviours": lambda n: run_file(more="").replace(
        "{default: {algorithm: {type: ppo}}}", f"{{{listed(n // 128, 'b#: {algorithm: {type: ppo, lr: 1}}')}}}"
    ),
    "many anchors": lambda n: run_file(env=f", kwargs: {{{listed(n // 24, 'k#: &a# 1')}}}"),
}


def spent(path: Path, text: str) -> float:
    """Returns the processor time that reading takes, the best of two."""
    path.write_text(text)
    times, said = [], []
    for _ in range(2):
        begun = time.process_time()
        try:
            RunFile.load(path, trusted=False).to_yaml()
        except QuintainError as error:
            said = error.lines()
        times.append(time.process_time() - begun)
    assert all(len(line) < 2_000 for line in said)
    return min(times)


@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_size_does_not_take_sixteen_times_as_long(tmp_path: Path, shape: str) -> None:
    small, large = (spent(tmp_path / "a.yaml", SHAPES[shape](size)) for size in (10_000, 40_000))
    # 4 if the cost follows the size, 16 if it follows its square; a file that takes next to nothing proves nothing.
    assert large < 8 * max(small, 0.02)


def test_the_name_that_was_meant_is_looked_for_only_where_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_searches = 0

    def search(*words: object, **options: object) -> list[str]:
        nonlocal num_searches
        num_searches += 1
        return get_close_matches(*words, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("quintain.settings.errors.get_close_matches", search)
    path = tmp_path / "a.yaml"
    path.write_text(run_file(algorithm=f", {listed(500, 'learning_rat#: 1')}"))
    with pytest.raises(QuintainError, match="first of 500 problems, 20 shown") as caught:
        RunFile.load(path)
    assert (num_searches, len(caught.value.lines())) == (20, 20)


def test_installed_packages_are_looked_through_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.syspath_prepend(tmp_path)  # another place to look in than any before
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or [])
    for name in ("evaluat", "evaluatte", "stop"):
        with pytest.raises(QuintainError, match="unknown event"):
            registry.get("event", name)
    assert asked == ["quintain.event"]


def test_a_run_of_more_parts_than_any_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(run_file(behavior=f", events: [{listed(1_100, 'evaluate')}]"))
    with pytest.raises(QuintainError, match="more than 1000 parts are named") as caught:
        RunFile.load(path)
    assert caught.value.code == "E0205"
