"""What importing and the quick commands pull in, observed in a fresh interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.architecture.source import ROOT

HEAVY = {
    "gymnasium",
    "llvmlite",
    "numba",
    "numpy",
    "pydantic",
    "ray",
    "rich",
    "safetensors",
    "tensordict",
    "torch",
    "typer",
    "yaml",
}

WATCH = """
import json, sys
from pathlib import Path
{action}
Path({report!r}).write_text(json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})))
"""


def imported_by(action: str, tmp_path: Path) -> set[str]:
    report = tmp_path / "modules.json"
    program = WATCH.format(action=action, report=str(report))
    process = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=_environment(), capture_output=True, text=True, timeout=120
    )
    assert process.returncode == 0, process.stderr
    return set(json.loads(report.read_text()))


def imported_by_command(words: list[str], tmp_path: Path, exit_code: int = 0) -> set[str]:
    check = f"assert main({words!r}) == {exit_code}"
    return imported_by(f"from quintain.cli.app import main; {check}", tmp_path)


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}


def test_importing_the_package_costs_nothing(tmp_path: Path) -> None:
    assert not imported_by("import quintain", tmp_path) & HEAVY


@pytest.mark.slow
def test_training_needs_no_extra(tmp_path: Path) -> None:
    extras = [
        "PIL", "ale_py", "imageio", "matplotlib", "minigrid", "mujoco", "multipart", "onnx", "onnxruntime",
        "onnxscript", "openai", "pettingzoo", "ray", "starlette", "tensorboard", "uvicorn", "wandb",
    ]  # fmt: skip
    # None in the place of a module makes its import, and the search for it, fail.
    hide = f"import sys; sys.modules.update(dict.fromkeys({extras!r}))"
    train = "from quintain import Trainer; Trainer('ppo', 'CartPole-v1', num_lanes=2, events=[]).train(256)"
    refuse = """
from quintain.errors import SettingsError
try:
    Trainer('ppo', 'CartPole-v1', num_lanes=2, placement='ray')
except SettingsError as error:
    assert error.code == 'E0242', error
else:
    raise AssertionError('Ray was found')
"""
    assert "torch" in imported_by(f"{hide}; {train}{refuse}", tmp_path)


def test_settings_and_specs_are_torch_free(tmp_path: Path) -> None:
    names = "GymSettings, PPOSettings, RunFile, Rng, BehaviorSpec, Every, register"
    assert not imported_by(f"from quintain import {names}", tmp_path) & {"torch", "tensordict", "gymnasium"}


def test_quick_commands_do_not_import_torch(tmp_path: Path) -> None:
    commands = [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["resume", "--help"],
        ["list"],
        ["list", "algorithm"],
        ["config", "schema"],
        ["config", "show", "ppo", "CartPole-v1", "num_lanes=16"],
    ]
    all_of_them = f"assert not any(main(words) for words in {commands!r})"
    found = imported_by(f"from quintain.cli.app import main; {all_of_them}", tmp_path)
    assert not found & {"torch", "tensordict", "gymnasium"}


def test_validate_does_not_import_torch(tmp_path: Path) -> None:
    run_file = tmp_path / "run.yaml"
    run_file.write_text("experiment:\n  env: {type: gym, id: CartPole-v1}\n  behaviors: {default: {algorithm: ppo}}\n")
    assert not imported_by_command(["validate", str(run_file)], tmp_path) & {"torch", "tensordict", "gymnasium"}


@pytest.mark.slow
def test_looking_at_checkpoints_does_not_import_torch(tmp_path: Path) -> None:
    train = ["train", "ppo", "CartPole-v1", "total_timesteps=64", "num_lanes=2", "num_steps=16", "batch_size=16"]
    words = [sys.executable, "-m", "quintain", *train, "--run-id", "a", "--quiet"]
    assert warm.run(words, cwd=tmp_path, env=warm.ENVIRONMENT).returncode == 0
    [checkpoint] = (tmp_path / "runs" / "a" / "checkpoints").glob("*-step-64")
    words = (["list", "a"], ["list", "a", "--json"], ["verify", str(checkpoint)], ["digest", str(checkpoint)])
    all_of_them = f"assert not any(main(['checkpoints', *words]) for words in {words!r})"
    found = imported_by(f"from quintain.cli.app import main; {all_of_them}", tmp_path)
    assert not found & {"torch", "tensordict", "gymnasium"}


@pytest.mark.slow
def test_training_imports_only_what_it_needs(tmp_path: Path) -> None:
    """Each of these costs as much as half of torch, before the first step."""
    words = [
        "train",
        "ppo",
        "CartPole-v1",
        "total_timesteps=64",
        "num_lanes=2",
        "num_steps=16",
        "batch_size=16",
        "--quiet",
    ]
    found = imported_by_command([*words, "events=[]"], tmp_path)
    assert "torch" in found, "what is not seen here would not be seen by the tests above"
    assert not found & {"matplotlib", "scipy", "sympy", "tensorboard", "tensordict", "wandb"}
