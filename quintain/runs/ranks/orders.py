"""The settings and the first task that rank 0 sends to the other ranks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from quintain.core.process_group import World
    from quintain.settings.tree import RunFile

FirstDeed = Literal["begin", "save", "restore"]
"""What ranks do when everything is built: train at once, commit a checkpoint first, or restore one."""


@dataclass(frozen=True)
class Orders:
    """What rank 0 tells the others to do with the settings it sends."""

    first: FirstDeed
    goes_on: bool = False
    """Whether a run that reached its goal forgets it, because it was asked to train for longer."""

    def send(self, world: World, run_file: RunFile) -> None:
        world.broadcast(json.dumps({"settings": run_file.to_dict(), **asdict(self)}).encode())

    @classmethod
    def receive(cls, world: World) -> tuple[dict[str, Any], Orders]:
        """Returns the settings and the orders."""
        message = json.loads(world.broadcast(b""))
        return message.pop("settings"), cls(**message)
