"""The list of models: what is kept, what is removed, and what a kill leaves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from quintain.behaviors.model_checkpoints import ModelCheckpoint, ModelCheckpointManager


def add(manager: ModelCheckpointManager, step: int, reward: float | None, keep: int = 2) -> None:
    path = f"Ball/Ball-{step}.onnx"
    (manager.run / "Ball").mkdir(exist_ok=True)
    (manager.run / path).write_bytes(b"model")
    manager.add_checkpoint("Ball", ModelCheckpoint(step, path, reward, 1.0, (f"checkpoints/{step}",)), keep)


def steps(manager: ModelCheckpointManager) -> list[int]:
    listed = [each.steps for each in manager.get_checkpoints("Ball")]
    assert sorted(path.name for path in (manager.run / "Ball").iterdir()) == sorted(f"Ball-{n}.onnx" for n in listed)
    return listed


def test_the_newest_are_kept_and_the_best_by_reward(tmp_path: Path) -> None:
    manager = ModelCheckpointManager(tmp_path)
    found = []
    for step, reward in ((100, None), (200, 5.0), (300, 1.0), (400, 2.0), (500, 5.0), (600, 0.0), (700, 0.0)):
        add(manager, step, reward)
        found.append(steps(manager))
    assert found == [[100], [100, 200], [200, 300], [200, 300, 400], [400, 500], [500, 600], [500, 600, 700]]


def test_a_run_that_went_back_makes_later_models_again(tmp_path: Path) -> None:
    manager = ModelCheckpointManager(tmp_path)
    for step in (100, 200, 300):
        add(manager, step, 9.0, keep=5)
    add(manager, 150, 1.0, keep=5)
    assert steps(manager) == [100, 150]


def test_the_list_outlives_the_process(tmp_path: Path) -> None:
    manager = ModelCheckpointManager(tmp_path)
    add(manager, 100, 2.5)
    add(manager, 200, None)
    manager.track_final_checkpoint("Ball", ModelCheckpoint(200, "Ball.onnx", None, 3.0))
    (tmp_path / "checkpoints" / "100").mkdir(parents=True)
    manager.save({"push": 2, "Ball": 1}, {"quintain": "1.2"})
    document = json.loads((tmp_path / "run_logs" / "training_status.json").read_text())
    assert document["metadata"] == {"stats_format_version": "0.3.0", "quintain_version": "1.2"}
    assert document["push"] == {"lesson_num": 2}
    assert document["Ball"]["lesson_num"] == 1, "a parameter may be called like a behaviour"
    assert document["Ball"]["checkpoints"] == [
        {"steps": 100, "file_path": "Ball/Ball-100.onnx", "reward": 2.5, "creation_time": 1.0,
         "auxillary_file_paths": ["checkpoints/100"]},
        {"steps": 200, "file_path": "Ball/Ball-200.onnx", "reward": None, "creation_time": 1.0,
         "auxillary_file_paths": []},
    ]  # fmt: skip
    again = ModelCheckpointManager(tmp_path)
    assert [each.steps for each in again.get_checkpoints("Ball")] == [100, 200]
    assert again.final["Ball"].file_path == "Ball.onnx"
    (tmp_path / "Ball" / "Ball-200.onnx").unlink()
    assert [each.steps for each in ModelCheckpointManager(tmp_path).get_checkpoints("Ball")] == [100]


def test_a_kill_while_it_is_written_leaves_the_old_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = ModelCheckpointManager(tmp_path)
    add(manager, 100, 1.0)
    manager.save({"push": 1}, {})
    before = manager.path.read_text()

    def killed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        manager.save({"push": 2}, {})
    assert manager.path.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", "{", '{"Ball": {"checkpoints": [{}]}}', '{"Ball": 3}'])
def test_a_file_that_cannot_be_read_begins_a_new_list(tmp_path: Path, text: str) -> None:
    (tmp_path / "run_logs").mkdir()
    (tmp_path / "run_logs" / "training_status.json").write_text(text)
    assert ModelCheckpointManager(tmp_path).get_checkpoints("Ball") == []


def test_files_outside_the_run_are_never_removed(tmp_path: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "mine.onnx"
    (run / "run_logs").mkdir(parents=True)
    other.write_text("mine")
    record = {"steps": 9, "reward": None, "creation_time": 0.0, "auxillary_file_paths": []}
    listed = [{**record, "file_path": path} for path in (str(other), "../mine.onnx")]
    (run / "run_logs" / "training_status.json").write_text(json.dumps({"Ball": {"checkpoints": listed}}))
    manager = ModelCheckpointManager(run)
    add(manager, 1, None)
    assert other.read_text() == "mine"
