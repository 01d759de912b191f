"""Curricula: environment parameters that change as behaviours learn, between cycles and never within one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from quintain.core.state import KeepsState, require_count
from quintain.envs.agents.env import AgentEnv
from quintain.envs.agents.samplers import sampler_of
from quintain.envs.settings import CriterionSettings, LessonSettings
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.typing import Metrics, State

_KEPT = 0.25
"""Decay of the smoothed measure at each check."""


class Curriculum(KeepsState):
    """The current lesson of each parameter, and the returns of behaviours in it."""

    not_state: ClassVar[frozenset[str]] = frozenset({"lessons", "capacity"})

    def __init__(self, lessons: Mapping[str, tuple[LessonSettings, ...]]) -> None:
        self.lessons = dict(lessons)
        criteria = [each.until for some in lessons.values() for each in some if each.until is not None]
        self.capacity = max([1, *(each.min_episodes for each in criteria)])
        self.numbers = dict.fromkeys(lessons, 0)
        """The index of each parameter's current lesson."""
        self.smoothed = dict.fromkeys(lessons, 0.0)
        self.returns: dict[str, list[float]] = {each.behavior: [] for each in criteria}
        """The newest returns of each behaviour since a lesson last changed."""

    def load_state_dict(self, state: State) -> None:
        for name, lessons in self.lessons.items():
            require_count(f"numbers.{name}", state["numbers"][name], len(lessons) - 1)
        super().load_state_dict(state)

    def require_behaviors(self, known: Mapping[str, object]) -> None:
        """Refuses lessons that depend on an unknown behaviour."""
        for name in self.returns:
            if name not in known:
                raise SettingsError(
                    f'a lesson waits for behaviour "{name}", and the environment has {", ".join(known)}', code="E0227"
                )

    def hear(self, behavior: str, returns: Sequence[float]) -> None:
        """Records the returns of completed episodes."""
        if behavior in self.returns:
            kept = [*self.returns[behavior], *map(float, returns)]
            self.returns[behavior] = kept[-self.capacity :]

    def advance(self, fractions: Mapping[str, float], world: ProcessGroup | None = None) -> tuple[list[str], bool]:
        """Advances where a lesson is completed; returns the changed parameters, and whether to reset the environment.

        `fractions` are the completed fractions of each behaviour's budget. Of several ranks, the first decides by the
        episodes of its own agents.
        """
        if world is not None and world.size > 1:
            state = json.loads(world.broadcast(json.dumps(self.state_dict()).encode()))
            self.load_state_dict(state)
        learned = [name for name in self.lessons if self._is_learned(name, fractions)]
        resets = any(self._until(name).resets for name in learned)
        for name in learned:
            self.numbers[name] += 1
            self.smoothed[name] = 0.0
        if learned:
            self.returns = {behavior: [] for behavior in self.returns}
        return learned, resets

    def _is_learned(self, name: str, fractions: Mapping[str, float]) -> bool:
        if self.current(name).until is None:
            return False
        until = self._until(name)
        returns = self.returns[until.behavior]
        if len(returns) < max(1, until.min_episodes):
            return False
        found = fractions[until.behavior]
        if until.measure == "reward":
            found = float(np.mean(returns))
            if until.is_smoothed:
                found = self.smoothed[name] = _KEPT * self.smoothed[name] + (1.0 - _KEPT) * found
        return found > until.threshold

    def current(self, name: str) -> LessonSettings:
        return self.lessons[name][self.numbers[name]]

    def _until(self, name: str) -> CriterionSettings:
        until = self.current(name).until
        assert until is not None, "only the last lesson has no end"
        return until

    def apply(self, env: AgentEnv, names: list[str] | None = None) -> None:
        """Sets the environment parameters of the current lessons, these or all."""
        env.set_parameters(**self.parameters(names))

    def parameters(self, names: list[str] | None = None) -> dict[str, Any]:
        """Returns the arguments of `set_parameters` for the current lessons, of these parameters or of all."""
        chosen = {name: self.current(name) for name in (self.lessons if names is None else names)}
        samplers = {name: sampler_of(each.sampler) for name, each in chosen.items() if each.sampler is not None}
        return {
            "values": {name: each.value for name, each in chosen.items() if each.value is not None},
            "samplers": {name: asdict(sampler) for name, sampler in samplers.items()},
        }

    def metrics(self) -> Metrics:
        return {f"env/lesson/{name}": float(number) for name, number in self.numbers.items()}
