"""A start that compiles its kernels and a start that loads them give the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

RUNS = """
import sys
import torch
torch.set_num_threads(1)
from quintain import Trainer
from quintain.core.versions import facts
from quintain.services.checkpoints.state_files import digest_of

FEW = {"writers": [], "events": [], "seed": 3}
PPO = {**FEW, "num_steps": 16, "batch_size": 32, "num_epochs": 2, "normalize_obs": True}
SAC = {**FEW, "num_lanes": 2, "learning_starts": 32, "batch_size": 16}
for algorithm, env, steps, settings in (
    ("ppo", "CartPole-v1", 256, {**PPO, "num_lanes": 4}),
    ("ppo", "Pendulum-v1", 1024, {**PPO, "num_lanes": 32, "squash_actions": True, "state_dependent_std": True}),
    ("sac", "Pendulum-v1", 160, {**SAC, "placement": "threads", "max_staleness": 1}),
):
    trainer = Trainer(algorithm, env, **settings)
    trainer.train(steps)
    print(digest_of(trainer.state_dict()))
    trainer.close()
print(facts(1)["versions"]["numba"], "numba" in sys.modules)
"""


@pytest.mark.slow
def test_numbers_do_not_depend_on_whether_code_was_compiled_or_loaded(tmp_path: Path) -> None:
    def digests() -> list[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(tmp_path)}
        words = [sys.executable, "-c", RUNS]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()

    *compiled, was_compiled = digests()
    assert was_compiled == "True"
    assert list(tmp_path.rglob("*.o"))
    assert len(compiled) == 4
    # What is said of the machine is the same too, or every resume would warn of another numba.
    *loaded, was_compiled = digests()
    assert was_compiled == "False"
    assert loaded == compiled
