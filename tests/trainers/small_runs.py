"""Trainers that are small enough to run many times, with nothing around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from quintain.runs.assemble import Slots, assemble
from quintain.services.checkpoints.state_files import decode, digest_of, encode
from quintain.services.reporting.writers import RunSummary, WriterGroup
from quintain.settings.tree import RunFile
from quintain.trainers import Trainer


class NoSession:
    """Surrounds training with nothing, and counts the cycles it sees."""

    runs_dir = Path("runs")
    keeps_checkpoints = False

    def __init__(self) -> None:
        self.num_cycles = 0
        self.warnings: list[str] = []
        self.told: list[str] = []

    @contextmanager
    def running(self, trainer: Trainer) -> Iterator[None]:
        yield

    def after_cycle(self, trainer: Trainer) -> None:
        self.num_cycles += 1

    def save(self, trainer: Trainer) -> Path:
        raise AssertionError("nothing asked for a checkpoint")

    def folder(self, name: str) -> Path:
        raise AssertionError("nothing asked for a folder")

    def keep_evidence(self, trainer: Trainer, tensors: Mapping[str, Any]) -> Path | None:
        return None

    def rollback(self, trainer: Trainer) -> bool:
        return False

    def warn(self, trainer: Trainer, code: str, text: str) -> None:
        self.warnings.append(f"{code}: {text}")

    def tell(self, text: str) -> None:
        self.told.append(text)

    def summary(self, trainer: Trainer) -> RunSummary:
        return RunSummary("finished", 0.0, trainer.progress.env_steps)


def small_trainer(*overrides: str, evaluate: bool = True, env: Any = None) -> Trainer:
    """Makes a PPO trainer for CartPole with short episodes: 2 lanes, 5 steps, 4 cycles."""
    event = {"type": "evaluate", "every_env_steps": 15, "num_episodes": 2}
    experiment: dict[str, Any] = {
        "env": {"type": "gym", "id": "CartPole-v1", "num_lanes": 2, "max_episode_steps": 12},
        "budget": {"env_steps": 40},
        "behaviors": {
            "default": {
                "algorithm": {"type": "ppo", "batch_size": 4, "num_epochs": 2},
                "policy": {"type": "actor_critic", "hidden_sizes": [4], "normalize_obs": True},
                "rollout": {"type": "block", "num_steps": 5},
                "events": [event] if evaluate else [],
            }
        },
    }
    run_file = RunFile.from_mapping({"experiment": experiment, "run": {"threads": 1}}, *overrides)
    return assemble(run_file, NoSession(), WriterGroup([]), Slots(env=env))


def digest(trainer: Trainer) -> str:
    return digest_of(trainer.state_dict())


def in_another_process(trainer: Trainer, **options: Any) -> Trainer:
    """Gives a fresh trainer the state that a checkpoint of this one would hold."""
    state = decode(encode(trainer.state_dict()))
    fresh = small_trainer(**options)
    fresh.load_state_dict(state)
    return fresh


class UsesGlobalNoise(gymnasium.Env[Any, Any]):
    """Draws from numpy's process-wide generator when it is made, reset and stepped, as careless environments do."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.offset = np.random.rand()  # noqa: NPY002
        self.count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._obs(), float(np.random.rand()), self.count == 4, False, {}  # noqa: NPY002

    def _obs(self) -> Any:
        return np.array([self.offset, np.random.rand()], np.float32)  # noqa: NPY002
