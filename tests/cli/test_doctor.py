"""`quintain doctor` tells what there is, and the command for what there is not."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from quintain.cli import doctor as module
from tests.cli.conftest import Command


def test_it_tells_versions_devices_threads_and_every_extra(quintain: Command) -> None:
    answer = quintain("doctor", "--json")
    assert answer.exit_code == 0
    found = {row["about"]: row for row in answer.json}
    assert importlib.metadata.version("torch") in found["torch"]["text"]
    assert found["devices"]["text"].startswith("cpu")
    assert "cores" in found["threads"]["text"]
    extras = set(importlib.metadata.metadata("quintain").get_all("Provides-Extra") or ()) - {"dev"}
    assert {about.strip("[]") for about in found if about.startswith("[")} == extras
    assert importlib.metadata.version("onnx") in found["[export]"]["text"]
    lines = quintain("doctor").out.splitlines()
    assert [line.split()[:2] for line in lines] == [[row["state"], row["about"]] for row in answer.json]


def test_an_extra_of_a_package_is_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {
        "quintain": ["numpy>=1", 'gymnasium[box2d]>=1; extra == "box"', 'absent-thing>=2; extra == "box"'],
        "gymnasium": [
            "numpy",
            "box2d-wheels==3; extra == 'box2d'",
            "pygame; extra == 'other'",
            "swig; python_version < '3' and extra == 'box2d'",
        ],
    }
    monkeypatch.setattr(importlib.metadata, "requires", told.get)
    assert module.packages_of("quintain", "box") == ["gymnasium", "box2d-wheels", "absent-thing"]


def test_a_missing_extra_is_a_note_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_version", {"onnx": "1.2"}.get)
    monkeypatch.setattr(module, "packages_of", lambda package, extra: ["onnx", "onnxruntime"])
    found = {finding.about: finding for finding in module.about_extras()}["[export]"]
    assert found.state == "note"
    assert found.text.startswith("without onnxruntime; ")
    assert "[export]" in found.text


def test_a_build_without_torch_is_missing_something(quintain: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    answer = quintain("doctor")
    # 1 would be a bug.
    assert answer.exit_code == 8
    assert any(line.startswith("missing  torch") and "pip install" in line for line in answer.out.splitlines())


@pytest.mark.parametrize("words", [("--ray",), ("--ray", "--address", "HOST:1"), ("--address", "HOST:1")])
def test_what_is_installed_is_told_before_a_cluster_is_waited_for(
    quintain: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    told_before, asked_for = [], []

    def examine(address: str | None, runs_dir: Path) -> Iterator[tuple[str, str, str]]:
        asked_for.append(address)
        told_before.append(capsys.readouterr().out)
        yield "ray address", "ok", "there"
        told_before.append(capsys.readouterr().out)

    monkeypatch.setattr(module, "import_module", lambda name: SimpleNamespace(examine=examine))
    assert quintain("doctor", *words).exit_code == 0
    assert asked_for == [words[-1] if "--address" in words else None]
    assert told_before[0].startswith("ok       quintain")
    assert told_before[1].split() == ["ok", "ray", "address", "there"]
