"""A small task with every kind of randomness, and the kinds of training that between them have all kinds of state.

choices, numbers    PPO with Discrete or Box actions
fragile             the same in an environment that breaks now and then, at times several times in a row
memory              PPO with an LSTM, a Dict observation, hybrid masked actions and an adaptive learning rate
replay              SAC with hybrid masked actions, returns over three steps, and a ring that is full before the end
groups              GRPO with a reference policy that is not the one a fresh trainer has
events              PPO in an environment with events and parameters that sometimes breaks and sometimes returns NaN
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import torch

from quintain.runs.assemble import Slots, assemble
from quintain.runs.run import Run
from quintain.services.checkpoints import state_files
from quintain.services.events import CYCLE_END, After, Every, On
from quintain.services.reporting.writers import WriterGroup
from quintain.settings.tree import RunFile
from quintain.trainers import Trainer

LANES, STEPS, CYCLES = 3, 8, 5
TOTAL = LANES * STEPS * CYCLES

COMMON = {"num_steps": STEPS, "num_epochs": 2, "normalize_obs": True, "budget.env_steps": 2 * TOTAL}
PPO = {**COMMON, "batch_size": 12, "hidden_sizes": [4, 4], "learning_rate": {"start": 1e-2, "end": 1e-3}}
PATIENT = {"env_workers.max_restarts": 1000, "env_workers.max_failures_in_a_row": 1000}
SETTINGS: dict[str, dict[str, Any]] = {
    "choices": PPO,
    "numbers": PPO,
    "fragile": {**PPO, **PATIENT},
    "memory": {**COMMON, "batch_size": 16, "hidden_sizes": [4], "memory": {"cell": "lstm", "size": 3},
               "learning_rate": 1e-2, "adaptive_kl": 1e-5},
    "groups": {**COMMON, "batch_size": 12, "hidden_sizes": [4], "group_size": LANES, "kl_coef": 0.5,
               "learning_rate": 1e-2},
    "replay": {"num_steps": STEPS, "normalize_obs": True, "budget.env_steps": 2 * TOTAL, "batch_size": 12,
               "hidden_sizes": [4], "learning_rate": 1e-2, "buffer_size": 70, "num_return_steps": 3,
               "learning_starts": 60, "updates_per_step": 0.21, "tau": 0.1, "report.every_updates": 1},
    "events": {**PPO, **PATIENT, "on_nonfinite": "drop_episode"},
}  # fmt: skip
ALGORITHMS = {"groups": "grpo", "replay": "sac"}
PLACE = gymnasium.spaces.Box(-10.0, 10.0, (3,), np.float32)
FORCE = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
STRUCTURED = gymnasium.spaces.Dict({"place": PLACE, "age": gymnasium.spaces.Discrete(7, start=1)})
HYBRID = gymnasium.spaces.Dict({"go": gymnasium.spaces.Discrete(3), "push": FORCE})


class Moody(gymnasium.Env[Any, Any]):
    """Rewards noisily, by all three global generators; its observations depend on seed and actions alone.

    Episodes end by themselves or by running out of time, after a number of steps that the actions decide.
    """

    on_step: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.wind, self.spread = 0.0, 1.0
        self.observation_space = STRUCTURED if kind == "memory" else PLACE
        self.is_hybrid = kind in {"memory", "replay"}
        self.action_space = HYBRID if self.is_hybrid else FORCE if kind == "numbers" else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.age = self.spread * float(self.np_random.uniform(-1.0, 1.0)), 0
        if self.kind in {"fragile", "events"} and self.place > (0.2 if self.kind == "fragile" else 0.45):
            raise OSError("slipped while getting up")
        return self._obs(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).on_step()
        self.place += self._move(action) + self.np_random.normal() / 4 + self.wind
        self.age += 1
        if self.kind in {"fragile", "events"} and (self.place > 0.5 if self.kind == "fragile" else self.place < -1.7):
            raise RuntimeError("fell")
        noise = random.gauss(0.0, 1.0) + np.random.normal() + float(torch.rand(()))  # noqa: NPY002
        return self._obs(), noise - abs(self.place), abs(self.place) > 2.5, self.age == 5, self._info()

    def _move(self, action: Any) -> float:
        if self.is_hybrid:
            assert self._info()["action_mask"][action["go"]]
            return float(action["go"]) - 1.0 + 0.5 * float(action["push"][0])
        return float(action[0]) if self.kind == "numbers" else 2.0 * action - 1.0

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.place > 0, True, self.place < 1])} if self.is_hybrid else {}

    def _obs(self) -> Any:
        is_broken = self.kind == "events" and self.age == 2 and self.place > 0.8
        place = np.array([math.nan if is_broken else self.place, self.age, math.sin(self.place)], np.float32)
        return {"place": place, "age": self.age + 1} if self.kind == "memory" else place


class Rows:
    """Keeps the rows of a run without the columns that depend on the clock, and what it was like in its last cycle."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.inside = ""

    def open(self, header: object) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, summary: object) -> None: ...

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self.rows.append((step, {k: v for k, v in row.items() if not k.startswith("time/")}))


class Nudge:
    """An event with a memory that changes the policy a little more at each call."""

    def __init__(self) -> None:
        self.num_calls = 0

    def __call__(self, trainer: Trainer) -> None:
        self.num_calls += 1
        with torch.no_grad():
            next(trainer.policy.parameters()).add_(1e-3 * self.num_calls)

    def state_dict(self) -> dict[str, int]:
        return {"num_calls": self.num_calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_calls = state["num_calls"]


class Gust:
    """An environment event with a memory: a wind that grows by its own count and by chance, and dies down at resets."""

    def __init__(self, cfg: Any, env: Any) -> None:
        self.strength = np.zeros(env.num_lanes)

    def __call__(self, env: Any, lanes: Any, rng: np.random.Generator) -> None:
        self.strength[lanes] += 0.02
        env.set_parameters({"wind": self.strength[lanes] * rng.uniform(0.5, 1.5, len(lanes))}, lanes)

    def reset(self, lanes: Any) -> None:
        self.strength[lanes] /= 2

    def state_dict(self) -> dict[str, Any]:
        return {"strength": self.strength.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.strength[:] = state["strength"]


def calm(env: Any, lanes: Any) -> None:
    env.set_parameters({"wind": 0.01, "spread": 0.75}, lanes)


ENV_EVENTS = {
    "gust": {"func": Gust, "mode": "interval", "interval_step": 3},
    "calm": {"func": calm, "mode": "interval", "interval_step": 2, "count_from": "episode"},
    "turn": {"func": Gust, "mode": "reset"},
}


def build(kind: str, events: tuple[dict[str, Any], ...] = ()) -> tuple[Trainer, Rows]:
    """Makes a trainer as every process does."""
    Moody.on_step = staticmethod(lambda: None)
    rows = Rows()
    run_file = RunFile.from_mapping(
        {
            "experiment": {
                "env": {"type": "gym", "id": "Moody", "num_lanes": LANES},
                "behaviors": {"default": {"algorithm": {"type": ALGORITHMS.get(kind, "ppo")}, "events": events}},
            }
        },
        changes=SETTINGS[kind],
    )
    slots = Slots(env=lambda: Moody(kind), env_events=ENV_EVENTS if kind == "events" else {})
    trainer = assemble(run_file, Run(run_file, [rows]), WriterGroup([rows]), slots)
    trainer.events.add(On(CYCLE_END), Nudge())
    trainer.events.add(On(CYCLE_END), lambda trainer: None)
    trainer.events.add(After("update"), lambda trainer: look_inside(trainer, rows))
    # Not due at 4 cycles of 24 steps (72 and 96 are both in the second 50), unless the step before is forgotten.
    trainer.events.add(Every(env_steps=50), Nudge())
    trainer.events.add(On("startup"), lambda trainer: Nudge()(trainer))
    if kind == "events":
        trainer.events.add(Every(updates=2), slow_down)
    return trainer, rows


def slow_down(trainer: Trainer) -> None:
    """Does what a rollback does to the learning rate, once."""
    if trainer.progress.updates == 2:
        trainer.algorithm.learning_rate_scale = 0.5


def begin(kind: str, events: tuple[dict[str, Any], ...] = ()) -> tuple[Trainer, Rows]:
    """Makes a trainer as the first process of a run does, which may give it the weights of another run."""
    trainer, rows = build(kind, events)
    if kind == "groups":
        with torch.no_grad():
            for parameter in trainer.policy.parameters():
                parameter.add_(0.1 * torch.sin(torch.arange(parameter.numel())).view_as(parameter))
        trainer.policy.observe({"obs": np.arange(12.0).reshape(4, 3)})
        trainer.algorithm.begin_from_policy()
    return trainer, rows


def look_inside(trainer: Trainer, rows: Rows) -> None:
    if trainer.progress.iteration == CYCLES - 1:
        rows.inside = state_files.digest_of(trainer.state_dict())
