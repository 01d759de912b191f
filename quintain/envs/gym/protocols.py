"""The interface of Gymnasium's objects that is used, so that environments of older versions fit too.

Returned values of user environments are untyped until they are checked.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from quintain.typing import Action, Keywords

Space: TypeAlias = Any
"""A Gymnasium space, recognised by its class name, which determines its attributes."""

Returned: TypeAlias = Any
"""A value returned by a user's environment, not yet checked."""


class GymEnv(Protocol):
    """One single environment."""

    observation_space: Space
    action_space: Space

    def reset(self, *, seed: int | None = None) -> Returned: ...
    def step(self, action: Action) -> Returned: ...
    def render(self) -> Returned: ...
    def close(self) -> None: ...


class GymVectorEnv(Protocol):
    """One vector environment."""

    num_envs: int
    single_observation_space: Space
    single_action_space: Space

    @property
    def unwrapped(self) -> Returned: ...
    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> Returned: ...
    def step(self, action: Action) -> Returned: ...
    def render(self) -> Returned: ...
    def close(self) -> None: ...
