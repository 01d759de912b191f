"""TensorBoard and Weights & Biases, with the packages themselves: what they read back is what the run wrote."""

from __future__ import annotations

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quintain.cli import app
from quintain.core import extras, registry
from quintain.core.budget import Budget
from quintain.runs.output import header_of, hyper_parameters, make_writers
from quintain.services.reporting.settings import WandbSettings
from quintain.services.reporting.wandb_writer import WandbWriter, kept_run_id
from quintain.services.reporting.writers import RunSummary
from quintain.settings.tree import RunFile
from tests.hold import wait_for
from tests.resume.nursery import Nursery

SMALL = ("num_lanes=2", "num_steps=32", "batch_size=32", "num_epochs=1", "checkpoint.every_updates=7")
NO_EVENTS = "experiment.behaviors.default.events=[]"


def words(run: str, writer: str, budget: int) -> list[str]:
    wanted = f"run.writers=[{writer}]"
    return ["train", "ppo", "CartPole-v1", *SMALL, NO_EVENTS, wanted, f"budget.env_steps={budget}", "--run-id", run]


def rows_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def scalars_of(run: Path, name: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run / "tensorboard"))
    accumulator.Reload()
    return [(point.step, point.value) for point in accumulator.Scalars(name)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_rows_of_quiet_runs_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    assert app.main([*words("a", "console, tensorboard", 128), "--quiet"]) == 0
    assert app.main(["resume", "a", "budget.env_steps=256", "-q"]) == 0
    assert capfd.readouterr() == ("", "")
    run = tmp_path / "runs" / "a"
    rows = rows_of(run)
    assert len(rows) == 4
    found = scalars_of(run, "train/value_loss")
    assert [step for step, _ in found] == [64, 128, 192, 256]
    assert [value for _, value in found] == pytest.approx([row["train/value_loss"] for row in rows], rel=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_the_hyper_parameters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    monkeypatch.chdir(tmp_path)
    assert app.main([*words("h", "tensorboard", 64), "learning_rate=0.002"]) == 0
    accumulator = EventAccumulator(str(tmp_path / "runs" / "h" / "tensorboard"))
    accumulator.Reload()
    content = accumulator.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    shown = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert shown["algorithm.learning_rate"].number_value == 0.002
    assert shown["env.id"].string_value == "CartPole-v1"
    [text] = accumulator.Tensors("Hyperparameters/text_summary")
    assert "| algorithm.learning_rate | 0.002 |" in text.tensor_proto.string_val[0].decode()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_no_point_twice_after_a_kill(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run = tmp_path / "runs" / "k"
    nursery = Nursery(tmp_path)
    process = nursery.start(*words("k", "tensorboard", 10**7))
    try:
        while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_bytes().splitlines()) < 20:
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
        status, printed = nursery.run("resume", "k", "budget.env_steps=2560")
        assert status == 0, printed
    finally:
        process.kill()
        nursery.close()
    steps = [step for step, _ in scalars_of(run, "train/value_loss")]
    assert steps == sorted(set(steps)), "no point is there twice"
    assert steps[-1] == rows_of(run)[-1]["step"]


@pytest.fixture
def no_wandb_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_without_a_key_keeps_rows_and_little_else_in_files(tmp_path: Path, no_wandb_key: None) -> None:
    wandb = pytest.importorskip("wandb")
    run_file = RunFile.from_names("ppo", "CartPole-v1", 'env.kwargs={"token": "hf_secret"}')
    writer = WandbWriter(WandbSettings(type="wandb"))
    writer.open(replace(header_of(run_file, None, (0, 0), Budget(256)), run_directory=str(tmp_path)))
    for step in (128, 256):
        writer.write(step, {"train/value_loss": 0.25 * step})
    writer.close(RunSummary("finished", 1.0, 256))
    # Its own process writes the file, and is done with it at the latest when it ends.
    wandb.teardown()
    [folder] = (tmp_path / "wandb").glob("offline-run-*")
    assert folder.name.endswith(kept_run_id(tmp_path))
    [file] = folder.glob("*.wandb")
    content = file.read_bytes()
    assert b"train/value_loss" in content
    assert b"algorithm.clip_coef" in content
    assert b"hf_secret" not in content
    left = {path.name for path in folder.rglob("*") if path.is_file()} - {file.name, "debug.log", "debug-internal.log"}
    assert left <= {"config.yaml", "wandb-summary.json", "debug-core.log"}, "no code, no packages, no console"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wandb_knows_a_resumed_run_by_the_same_id(tmp_path: Path, no_wandb_key: None) -> None:
    pytest.importorskip("wandb")
    run = tmp_path / "runs" / "w"
    nursery = Nursery(tmp_path)
    commands = (words("w", "wandb", 10**7), ["resume", "w"])
    try:
        for number, command in enumerate(commands, start=1):
            process = nursery.start(*command)
            try:
                wait_for(lambda number=number: len(list((run / "wandb").glob("offline-run-*"))) == number)
                process.send_signal(signal.SIGTERM)
                assert process.wait(timeout=100) == 128 + signal.SIGTERM
            finally:
                process.kill()
    finally:
        nursery.close()
    known_as = (run / "wandb-run-id").read_text().strip()
    assert all(path.name.endswith(known_as) for path in (run / "wandb").glob("offline-run-*"))


def test_the_id_is_kept_and_nonsense_is_replaced(tmp_path: Path) -> None:
    first = kept_run_id(tmp_path)
    assert re.fullmatch(r"[a-z0-9]{8}", first)
    assert kept_run_id(tmp_path) == first
    (tmp_path / "wandb-run-id").write_text("../../etc/passwd")
    assert kept_run_id(tmp_path) != "../../etc/passwd"


def test_only_what_is_harmless_is_shown_to_others() -> None:
    run_file = RunFile.from_names("ppo", "CartPole-v1", 'env.kwargs={"token": "hf_secret", "port": 4711}', "seed=3")
    shown = hyper_parameters(run_file)
    assert shown["seed"] == 3
    assert shown["algorithm.type"] == "ppo"
    assert shown["env.id"] == "CartPole-v1"
    assert "hf_secret" not in shown.values()
    assert 4711 not in shown.values()
    assert not any("kwargs" in name or name.startswith("run.") for name in shown)
    assert header_of(run_file, None, (0, 0), Budget(1)).hyper_parameters == shown


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_package_that_is_missing_is_one_line_at_the_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    assert app.main(words("m", name, 256)) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error[E0242]: run.writers: {name} needs the package {name}, which is not installed.")
    assert line.endswith(f"Install it with: {extras.install_command(name)}")
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_they_work_behind_a_queue(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda package: object())
    [_, writer] = make_writers(RunFile.from_names("ppo", "CartPole-v1", f"run.writers=[{name}]"))
    assert type(writer).__name__ == "QueuedWriter"
    assert registry.get("writer", name).settings_class.in_background  # type: ignore[attr-defined]
