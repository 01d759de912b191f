"""Environments of agents with faults that `quintain check` finds."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from quintain.envs.agents.specs import ActionSpec, BehaviorSpec, ObservationSpec
from quintain.envs.agents.steps import DecisionSteps, TerminalSteps

SPEC = BehaviorSpec([ObservationSpec((1,))], ActionSpec.create_discrete((2,)))
MADE = itertools.count()


class Silent:
    """Its agents never want a decision."""

    behavior_specs = {"Mute": SPEC}  # noqa: RUF012

    def reset(self) -> None: ...
    def step(self) -> None: ...
    def close(self) -> None: ...
    def set_actions(self, name: str, action: Any) -> None: ...
    def get_steps(self, name: str) -> tuple[Any, Any]:
        return DecisionSteps.empty(SPEC), TerminalSteps.empty(SPEC)


class Drifting(Silent):
    """Its one agent sees how many environments were made before, and earns too much."""

    def __init__(self) -> None:
        self.number = next(MADE)

    def get_steps(self, name: str) -> tuple[Any, Any]:
        obs = [np.full((1, 1), self.number, np.float32)]
        zeros = np.zeros(1, np.int32)
        reward = np.full(1, 500.0, np.float32)
        return DecisionSteps(obs, reward, zeros), TerminalSteps.empty(SPEC)
