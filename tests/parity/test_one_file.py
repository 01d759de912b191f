"""The framework and the executable specification, which share no code, arrive at the same weights bit for bit."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from quintain import Trainer
from tests import warm

ONE_FILE = Path(__file__).parents[2] / "examples" / "ppo_in_one_file.py"

# 17 steps cut most episodes of an untrained CartPole but not all, so both kinds of end occur. 60 does not divide
# 4 * 64, so every epoch ends with a smaller minibatch.
SMALL = {"seed": 3, "num_lanes": 4, "num_steps": 64, "num_epochs": 3, "batch_size": 60, "max_episode_steps": 17}
NUM_UPDATES = 5
# Moves of the scale are folded from 10,000 rows on: after three updates of so many steps.
MOVING = {"num_steps": 900, "batch_size": 700, "max_episode_steps": 60}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "discrete": ({"env_id": "CartPole-v1"}, {}),
    "entropy": ({"env_id": "CartPole-v1", "entropy_coef": 0.02}, {"entropy_coef": 0.02}),
    "annealed": (
        {"env_id": "CartPole-v1", "anneal_learning_rate": True},
        {"learning_rate": {"start": 1e-3, "end": 0.0}},
    ),
    "continuous": ({"env_id": "Pendulum-v1"}, {}),
    "normalized": ({"env_id": "Pendulum-v1", "normalize_obs": True}, {"normalize_obs": True}),
    "moving": ({"env_id": "Pendulum-v1", "normalize_obs": True, **MOVING}, {"normalize_obs": True, **MOVING}),
    "clipped": (
        {"env_id": "Pendulum-v1", "normalize_obs": True, "obs_clip": 1.5, **MOVING},
        {"normalize_obs": True, "obs_clip": 1.5, **MOVING},
    ),
    "other seed": ({"env_id": "CartPole-v1", "seed": 11}, {"seed": 11}),
}


@pytest.fixture(scope="module")
def one_file() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ppo_in_one_file", ONE_FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def budget(settings: dict[str, Any]) -> int:
    return NUM_UPDATES * int(settings["num_lanes"]) * int(settings["num_steps"])


def weights_of_one_file(one_file: ModuleType, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], list[str]]:
    lines: list[str] = []
    chosen = {**SMALL, **settings}
    agent = one_file.train(one_file.Args(total_steps=budget(chosen), **chosen), show=lines.append)
    return agent.state_dict(), lines


def weights_of_framework(env_id: str, settings: dict[str, Any]) -> tuple[dict[str, torch.Tensor], Trainer]:
    specified = {"learning_rate": 1e-3, "gae_lambda": 0.95, "noise_hold": 1}
    plain = {"compiled": False, **specified, **SMALL, **settings}
    trainer = Trainer("ppo", env_id, total_timesteps=budget(plain), writers=[], events=[], **plain)
    trainer.train()
    renamed = {
        name.removeprefix("head.heads.0.").removeprefix("trunk.encoder.normalizer."): tensor
        for name, tensor in trainer.policy.state_dict().items()
    }
    return renamed, trainer


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case in ("moving", "clipped") else case for case in CASES]
)
def test_the_same_seed_gives_the_same_weights_bit_for_bit(one_file: ModuleType, case: str) -> None:
    specified_settings, framework_settings = CASES[case]
    specified, lines = weights_of_one_file(one_file, specified_settings)
    computed, trainer = weights_of_framework(specified_settings["env_id"], framework_settings)
    trainer.close()

    assert len(lines) == NUM_UPDATES == trainer.progress.updates
    if "shift" not in computed:
        # The framework builds no normaliser when it is off; the specification then leaves its own untouched.
        del specified["shift"], specified["scale"]
    assert specified.keys() <= computed.keys()
    for name, tensor in specified.items():
        assert torch.equal(tensor, computed[name]), f"{name} differs by {(tensor - computed[name]).abs().max()}"


def test_both_kinds_of_episode_end_occur(one_file: ModuleType) -> None:
    """Guards the parity test itself: without truncations it could not see how they are bootstrapped."""
    _, trainer = weights_of_framework("CartPole-v1", {})
    trainer.close()
    rollout = trainer.store.block  # type: ignore[attr-defined]  # the block store of the default settings
    assert rollout["truncated"].any()
    assert rollout["terminated"].any()
    assert (rollout["final_value"] != 0).any()


def test_training_moved_every_weight(one_file: ModuleType) -> None:
    """Guards the parity test itself: equal weights mean nothing if they are those of the start."""
    trained, _ = weights_of_one_file(one_file, {})
    start = one_file.train(one_file.Args(**SMALL, total_steps=0), show=lambda line: None).state_dict()
    for name in trained.keys() - {"shift", "scale"}:
        assert not torch.equal(trained[name], start[name]), name


def test_the_specification_uses_nothing_of_the_framework_and_stays_short() -> None:
    text = ONE_FILE.read_text()
    imported = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            imported.add(node.module.split(".")[0])
    assert imported <= {"argparse", "collections", "dataclasses", "gymnasium", "hashlib", "math", "numpy", "torch"}
    assert len(text.splitlines()) <= 350


@pytest.mark.slow
def test_the_command_in_its_docstring_prints_progress_and_a_digest() -> None:
    command = [sys.executable, str(ONE_FILE), "--seed", "3", "--total-steps", "2000", "--normalize-obs", "true"]
    printed = warm.run(command, capture_output=True).stdout.splitlines()
    # 8 lanes * 128 steps = 1024 steps an update: two updates pass 2000.
    assert [line.split()[:2] for line in printed[:-1]] == [["step", "1024"], ["step", "2048"]]
    word, digest = printed[-1].split()
    assert word == "weights"
    assert len(bytes.fromhex(digest)) == 32
