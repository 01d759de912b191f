"""Videos of episodes while a run trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.services.reporting.video import require_pillow

if TYPE_CHECKING:
    from quintain.services.events import When
    from quintain.trainers.base import Trainer
    from quintain.trainers.events import EventContext
    from quintain.trainers.settings import RecordVideoSettings


class RecordVideo:
    """Writes `videos/step-<steps>.webp`: an episode of the policy as it is now; of several ranks, by the first.

    The policy is copied, and acts in an environment of its own with streams of its own, so training with and without
    videos gives the same weights. Training does not wait: while a video is being made no second one is begun.
    """

    def __init__(self, settings: RecordVideoSettings, context: EventContext) -> None:
        require_pillow()
        camera = context.make_camera and context.make_camera(settings, context.rng.child("videos"))
        if camera is None:
            raise SettingsError(
                "events: record_video makes an environment of its own, and here is one that exists already, or agents; "
                "pass a Gymnasium id, a class or a factory",
                code="E0226",
            )
        self.settings = settings
        self.when: When = settings.when()
        self.films_here = context.world.rank == 0
        self.camera = camera
        self.warn: Callable[[str], None] | None = None
        """Tells of a failure; None before the first video."""

    def __call__(self, trainer: Trainer) -> None:
        if not self.films_here or self.camera.is_busy:
            return
        self.warn = partial(trainer.session.warn, trainer.loop, "W0505")
        if self.camera.failure:
            self._give_up()
            return
        path = trainer.session.folder("videos") / f"step-{trainer.progress.env_steps:09d}.webp"
        [name] = trainer.loop.learners
        self.camera.film(name, copy.deepcopy(trainer.policy).cpu(), path)

    def close(self) -> None:
        self.camera.close()
        # The last video of a run, or its only one, may have failed too.
        if self.films_here and self.camera.failure:
            self._give_up()

    def _give_up(self) -> None:
        self.films_here = False
        if self.warn is not None:
            self.warn(f"no more videos: {self.camera.failure}")
