"""Copies of an environment of agents in several groups, one for each collector; they appear as one environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from quintain.envs.agents.env import AgentEnv

if TYPE_CHECKING:
    from quintain.typing import Array, Mirror


class GroupedAgents:
    """Describes the groups, and closes them; each is stepped by its collector."""

    def __init__(self, groups: Sequence[AgentEnv]) -> None:
        self.groups = groups
        self.specs = {name: spec for group in reversed(groups) for name, spec in group.specs.items()}
        self.notes = groups[0].notes
        self.frames_per_second = groups[0].frames_per_second

    @property
    def exactness(self) -> str:
        return next((group.exactness for group in self.groups if group.exactness != "exact"), "exact")

    def mirror_of(self, behavior: str) -> Mirror | None:
        """Returns the symmetry of a behaviour's observations and actions, if the environment has one."""
        return self.groups[0].mirror_of(behavior)

    def render(self) -> Array | None:
        """Returns an image of the first copy, if it has a method `render`."""
        return self.groups[0].render()

    def close(self) -> None:
        for group in self.groups:
            group.close()
