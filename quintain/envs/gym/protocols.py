"""What is asked of Gymnasium's objects, so that environments written for its older versions fit too.

Nothing is promised of what a user's environment returns: it is looked at before it is used.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from quintain.typing import Action, Keywords

Space: TypeAlias = Any
"""A space of Gymnasium, recognised by the name of its class; which attributes it has depends on that."""

Returned: TypeAlias = Any
"""What a method of a user's environment returned, before anything about it was checked."""


class GymEnv(Protocol):
    """One environment of one lane."""

    observation_space: Space
    action_space: Space

    def reset(self, *, seed: int | None = None) -> Returned: ...
    def step(self, action: Action) -> Returned: ...
    def render(self) -> Returned: ...
    def close(self) -> None: ...


class GymVectorEnv(Protocol):
    """One object that steps several lanes at once."""

    num_envs: int
    single_observation_space: Space
    single_action_space: Space

    @property
    def unwrapped(self) -> Returned: ...
    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> Returned: ...
    def step(self, action: Action) -> Returned: ...
    def render(self) -> Returned: ...
    def close(self) -> None: ...
