"""Imports of code that settings name: which names are permitted, and where modules may lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from quintain.core import registry, trust
from quintain.errors import CheckpointError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; what is imported from it is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def write_module(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("import pathlib\npathlib.Path('imported').touch()\nclass Part: ...\n")


def make_run(path: Path) -> None:
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.yaml").touch()
    (path / "status.json").touch()


class TestNames:
    @pytest.mark.parametrize(
        "tree",
        [
            {"id": "a:B"},
            {"type": "odd name:B"},
            {"reward_signals": {"a.b:C": {}}},
            {"kwargs": {"inner": ["x", {"wrapper": "a:b"}]}},
            {"kwargs": {"env_id": "pkg:space/Walk-v1"}},
            {"id": "quintain.core.registry:import_part"},
            {"id": "quintain.envs.hosts.recipes:json.loads"},
            {"id": "quintain.placements.collector_process:CollectorProcess"},
            {"id": "quintain.envs.hosts.recipes:Recipe"},
            {"id": "quintain.envs.agents.tasks:_private"},
            {"id": "quintain.policies.export:export_onnx"},
        ],
    )
    def test_that_are_found(self, tree: dict[str, object]) -> None:
        assert len(list(trust.code_names(tree))) == 1

    @pytest.mark.parametrize(
        "text", ["cuda:0", "https://a.b/c", "C:\\data", "16:9", "note: see below", "host:8080", "plain", "a:b:c"]
    )
    def test_that_are_none(self, text: str) -> None:
        assert not list(trust.code_names({"kwargs": {"text": text}}))

    def test_of_parts_that_ship_need_no_permission(self) -> None:
        assert not list(trust.code_names({"id": "quintain.envs.agents.tasks:gates"}))


class TestLimits:
    def test_only_permitted_names_are_imported(self, folder: Path) -> None:
        write_module(folder / "mine.py")
        with trust.importing_only({"other:Part"}), pytest.raises(CheckpointError, match="--allow mine:Part") as caught:
            registry.import_part("env", "mine:Part")
        assert (caught.value.code, (folder / "imported").exists()) == ("E0407", False)
        with trust.importing_only({"mine:Part"}):
            assert registry.import_part("env", "mine:Part").__name__ == "Part"

    def test_a_limit_ends_with_its_block_whatever_the_order(self, folder: Path) -> None:
        write_module(folder / "mine.py")
        first, second = trust.importing_only({"a:B"}), trust.importing_only({"a:B"})
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        with pytest.raises(CheckpointError):
            registry.import_part("env", "mine:Part")
        second.__exit__(None, None, None)
        registry.import_part("env", "mine:Part")

    def test_parts_that_ship_are_imported(self) -> None:
        with trust.importing_only(()):
            assert callable(registry.import_part("env", "quintain.envs.agents.tasks:gates"))
            assert callable(registry.get("writer", "console").load())

    @pytest.mark.parametrize("name", ["quintain.envs.agents.tasks:ABC", "quintain.trainers.events:EnvEventManager"])
    def test_what_a_module_of_ours_only_borrows_is_not_ours(self, name: str) -> None:
        with trust.importing_only(()), pytest.raises(CheckpointError) as caught:
            registry.import_part("env", name)
        assert caught.value.code == "E0407"


class TestRunDirectories:
    @pytest.mark.parametrize("package", ["", "pack"])
    def test_code_inside_one_is_never_imported(self, folder: Path, package: str) -> None:
        make_run(folder / "runs" / "friend")
        write_module(folder / "runs" / "friend" / package / "payload.py")
        write_module(folder / "runs" / "friend" / package / "__init__.py")
        path = ".".join(filter(None, ["runs.friend", package, "payload:Part"]))
        with pytest.raises(CheckpointError, match="lies inside the run directory") as caught:
            registry.import_part("env", path)
        assert (caught.value.code, (folder / "imported").exists()) == ("E0407", False)

    def test_nor_when_it_is_the_current_folder(self, folder: Path) -> None:
        make_run(folder)
        write_module(folder / "payload.py")
        with pytest.raises(CheckpointError, match="lies inside the run directory"):
            registry.import_part("env", "payload:Part")

    def test_nor_through_a_link(self, folder: Path) -> None:
        make_run(folder / "runs" / "friend")
        write_module(folder / "runs" / "friend" / "payload.py")
        (folder / "payload.py").symlink_to(folder / "runs" / "friend" / "payload.py")
        with pytest.raises(CheckpointError, match="lies inside the run directory"):
            registry.import_part("env", "payload:Part")

    def test_code_beside_runs_is(self, folder: Path) -> None:
        make_run(folder / "runs" / "own")
        write_module(folder / "beside_runs.py")
        assert registry.import_part("env", "beside_runs:Part").__name__ == "Part"
