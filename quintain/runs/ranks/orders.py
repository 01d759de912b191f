"""The settings and the first task that rank 0 sends to the other ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from quintain.core.process_group import ProcessGroup
    from quintain.settings.tree import RunFile

FirstDeed = Literal["begin", "save", "restore"]
"""First action of ranks when everything is built: train at once, commit a checkpoint first, or restore one."""


@dataclass(frozen=True)
class Orders:
    """The orders of rank 0, with the settings it sends."""

    first: FirstDeed
    goes_on: bool = False
    """Whether a completed run continues, because it was asked to train for longer."""
    anew: bool = False
    """Whether lanes begin new episodes, because their settings changed."""

    def send(self, world: ProcessGroup, run_file: RunFile) -> None:
        world.broadcast(json.dumps({"settings": run_file.to_dict(), **asdict(self)}).encode())

    @classmethod
    def receive(cls, world: ProcessGroup) -> tuple[dict[str, Any], Orders]:
        """Returns the settings and the orders."""
        message = json.loads(world.broadcast(b""))
        return message.pop("settings"), cls(**message)
