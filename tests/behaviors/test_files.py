"""What a run of agents leaves beside its checkpoints: models for Unity, the status and the timers."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.behaviors import SimpleEnvManager, TrainerController, TrainerFactory
from quintain.behaviors.trainer_settings import PPOSettings, PPOTrainerSettings
from quintain.envs.agents.tasks import balance_ball
from quintain.errors import SettingsError, SpecMismatch
from quintain.policies import unity_export
from quintain.runs.launch import checkpoint_of, resume, start
from quintain.services.checkpoints.catalog import CheckpointCatalog, load
from quintain.services.files import atomic
from quintain.services.files.run_names import file_name
from quintain.settings.tree import RunFile
from tests.behaviors.runs import run_file
from tests.behaviors.test_curriculum import curriculum_file

onnxruntime = pytest.importorskip("onnxruntime")


def settings_of(env_steps: int = 600, *, every: int = 200, keep: int = 2, **more: Any) -> RunFile:
    settings = run_file("ball_and_gates", env_steps, **more)
    return settings.replace("run.checkpoint.every_env_steps", every).replace("run.checkpoint.keep", keep)


def trained(settings: RunFile, folder: Path, run_id: str = "a") -> tuple[Path, list[str]]:
    launched = start(settings, runs_dir=folder, run_id=run_id, quiet=True)
    notes: list[str] = []
    launched.run.writer.note = notes.append  # type: ignore[method-assign]
    launched.trainer.train()
    launched.run.close()
    return folder / run_id, notes


def status_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "run_logs" / "training_status.json").read_text())
    return found


def models_of(run: Path, behavior: str) -> list[str]:
    return sorted((path.name for path in (run / behavior).glob("*.onnx")), key=lambda name: int(name[5:-5]))


def test_models_are_written_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    run, _ = trained(settings_of(budgets={"Gate": 250}), tmp_path)
    status = status_of(run)
    state = load(checkpoint_of(tmp_path, "a")).state["training"]["learners"]
    for name in ("Ball", "Gate"):
        listed = status[name]["checkpoints"]
        assert models_of(run, name) == [f"{name}-{each['steps']}.onnx" for each in listed]
        last, final = listed[-1], status[name]["final_checkpoint"]
        assert last["steps"] == final["steps"] == state[name]["progress"]["env_steps"]
        assert final["file_path"] == f"{name}.onnx"
        assert (run / final["file_path"]).read_bytes() == (run / last["file_path"]).read_bytes()
        assert (run / last["auxillary_file_paths"][0] / "manifest.json").is_file()
        assert last["reward"] is not None
        session = onnxruntime.InferenceSession(str(run / f"{name}.onnx"), providers=["CPUExecutionProvider"])
        assert {"version_number", "memory_size"} <= {each.name for each in session.get_outputs()}
    # The gates had learned enough long before the end, and were left alone from then on.
    assert 250 <= status["Gate"]["final_checkpoint"]["steps"] < 400
    assert len(status["Gate"]["checkpoints"]) < len(status["Ball"]["checkpoints"]) <= 3


def test_the_last_model_is_the_policy_that_was_trained(tmp_path: Path) -> None:
    launched = start(settings_of(300), runs_dir=tmp_path, run_id="a", quiet=True)
    launched.trainer.train()
    launched.run.close()
    policy = launched.trainer.learners["Ball"].policy
    seen = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    session = onnxruntime.InferenceSession(str(tmp_path / "a" / "Ball.onnx"), providers=["CPUExecutionProvider"])
    [acted] = session.run(["deterministic_continuous_actions"], {"obs_0": seen})
    np.testing.assert_allclose(acted, policy.predict(seen)[0], atol=1e-5)


def test_the_status_is_that_of_each_checkpoint(tmp_path: Path) -> None:
    settings = curriculum_file(measure="progress", threshold=0.3).replace("run.checkpoint.every_updates", 1)
    launched = start(settings, runs_dir=tmp_path, run_id="a", quiet=True)
    trainer, seen = launched.trainer, []
    commit = launched.run._commit

    def recorded(given: Any) -> Any:
        made = commit(given)
        [(parameter, number)] = trainer.curriculum.numbers.items()  # type: ignore[attr-defined]
        seen.append((status_of(tmp_path / "a")[parameter]["lesson_num"], number))
        return made

    launched.run._commit = recorded  # type: ignore[method-assign]
    trainer.train()
    launched.run.close()
    assert all(written == number for written, number in seen)
    assert len({number for _, number in seen}) > 1, "no lesson was learned, so that nothing was shown"


@pytest.mark.slow
def test_the_list_of_models_survives_a_kill(tmp_path: Path) -> None:
    launched = start(settings_of(1200, keep=3), runs_dir=tmp_path, run_id="a", quiet=True)
    while launched.trainer.progress.env_steps < 900:
        launched.trainer.advance()
    # Nothing is closed, as if the process had been killed.
    launched.run.resources.close()
    before = status_of(tmp_path / "a")["Ball"]["checkpoints"]
    assert before
    again = resume(tmp_path, "a", quiet=True, allow=["quintain.envs.agents.tasks:ball_and_gates"])
    again.trainer.train()
    again.run.close()
    whole, _ = trained(settings_of(1200, keep=3), tmp_path, "b")
    listed = [
        [(each["steps"], each["reward"]) for each in status_of(run)[name]["checkpoints"]]
        for run in (tmp_path / "a", whole)
        for name in ("Ball", "Gate")
    ]
    assert listed[:2] == listed[2:]


def test_checkpoints_of_models_are_kept_as_long_as_the_models(tmp_path: Path) -> None:
    settings = settings_of(900, every=300).replace("run.checkpoint.every_updates", 1)
    run, _ = trained(settings, tmp_path)
    listed = [each for name in ("Ball", "Gate") for each in status_of(run)[name]["checkpoints"]]
    assert all(each["auxillary_file_paths"] for each in listed)
    names = {Path(path).name for each in listed for path in each["auxillary_file_paths"]}
    entries = CheckpointCatalog(run / "checkpoints").entries()
    assert names <= {entry.path.name for entry in entries}
    # The two newest, those of the models, and the best.
    assert len(entries) <= len(names) + 3


def test_the_best_checkpoint_is_the_one_with_the_highest_mean_return(tmp_path: Path) -> None:
    launched = start(
        run_file("gates", 1500).replace("run.checkpoint.every_updates", 1), runs_dir=tmp_path, run_id="a", quiet=True
    )
    trainer, means = launched.trainer, {}
    commit = launched.run._commit

    def recorded(given: Any) -> Any:
        made = commit(given)
        window = trainer.learners["Gate"].episodes  # type: ignore[attr-defined]
        if len(window) >= 10:
            means[made.step] = window.mean_return
        return made

    launched.run._commit = recorded  # type: ignore[method-assign]
    trainer.train()
    launched.run.close()
    best = CheckpointCatalog(tmp_path / "a" / "checkpoints").best()
    assert means[best.step] == max(means.values())
    assert len(means) > 3


def test_models_change_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_models, _ = trained(settings_of(), tmp_path, "a")

    def missing() -> Any:
        raise SettingsError("export needs onnx. Install it", code="E0242")

    monkeypatch.setattr(unity_export, "require_libraries", missing)
    without, notes = trained(settings_of(), tmp_path, "b")
    assert load(checkpoint_of(tmp_path, "a")).manifest.digest == load(checkpoint_of(tmp_path, "b")).manifest.digest
    assert (with_models / "Ball.onnx").is_file()
    assert not (without / "Ball.onnx").exists()
    assert [note for note in notes if "Unity" in note] == [
        "note: no models are written for Unity: export needs onnx. Install it"
    ]
    assert status_of(without)["metadata"]["stats_format_version"] == "0.3.0"


def test_a_policy_that_cannot_be_written_costs_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(policy: Any, path: Path) -> float:
        raise SpecMismatch("it is too strange")

    monkeypatch.setattr(unity_export, "export_unity", refused)
    run, notes = trained(settings_of(), tmp_path)
    assert [note for note in notes if "W0901" in note] == [
        f"warning[W0901]: {name}: its model is not written for Unity: it is too strange; checkpoints are fine"
        for name in ("Ball", "Gate")
    ]
    assert json.loads((run / "status.json").read_text())["state"] == "finished"


def test_files_that_cannot_be_written_cost_one_warning_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = atomic.replace_file

    def full(path: Path, data: bytes) -> None:
        if path.suffix == ".onnx" or path.parent.name == "run_logs":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(path, data)

    monkeypatch.setattr(atomic, "replace_file", full)
    run, notes = trained(settings_of(), tmp_path)
    [warning] = [note for note in notes if "W0901" in note]
    assert "No space left on device" in warning
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert not list(run.rglob("*.onnx"))


def test_timers_are_written_at_the_end(tmp_path: Path) -> None:
    run, _ = trained(settings_of(), tmp_path)
    root = json.loads((run / "run_logs" / "timers.json").read_text())
    advance = root["children"]["TrainerController.start_learning"]["children"]["advance"]
    assert {"collect", "estimate", "update", "publish"} <= set(advance["children"])
    assert {"act", "env"} == set(advance["children"]["collect"]["children"])
    assert root["gauges"]["Ball/train/policy_loss"]["count"] > 2
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "Ball/train/policy_loss" in row][-1]
    assert root["gauges"]["Ball/train/policy_loss"]["value"] == last["Ball/train/policy_loss"]


def test_a_run_of_the_other_packages_controller_leaves_the_same_files(tmp_path: Path) -> None:
    settings = PPOTrainerSettings(
        hyperparameters=PPOSettings(batch_size=64, buffer_size=128), max_steps=300, checkpoint_interval=150
    )
    factory = TrainerFactory({"Ball": settings}, str(tmp_path), seed=1)
    controller = TrainerController(factory, str(tmp_path), "first", training_seed=1)
    controller.start_learning(SimpleEnvManager(balance_ball()))
    status = status_of(tmp_path / "first")
    assert (tmp_path / "first" / "Ball.onnx").is_file()
    assert status["Ball"]["final_checkpoint"]["steps"] == controller.trainers["Ball"].get_step
    assert models_of(tmp_path / "first", "Ball") == [
        f"Ball-{each['steps']}.onnx" for each in status["Ball"]["checkpoints"]
    ]
    assert len(status["Ball"]["checkpoints"]) >= 2


def test_names_of_behaviours_stay_inside_the_run() -> None:
    assert file_name("../../x") == "_._.._x"
    assert file_name("Goalie") == "Goalie"
    assert file_name("run_logs") == "run_logs_"
