"""Films episodes in a thread, so that training never waits for a video."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from quintain.errors import QuintainError
from quintain.rollouts.evaluate import Evaluator
from quintain.services.reporting.video import EpisodeRecorder, save_webp
from quintain.services.user_code import ANYTHING, in_one_line

if TYPE_CHECKING:
    from pathlib import Path

    from quintain.core.rng import Rng
    from quintain.envs.base import Env
    from quintain.policies.base import Policy
    from quintain.trainers.settings import RecordVideoSettings

_FILE_NAME = re.compile(r"step-(\d+)\.webp")
_END_SECONDS = 5.0


class FilmingThread:
    """Plays an episode and writes it as a video; the environment is kept for the next one. Implements `Camera`."""

    def __init__(self, make_env: Callable[[Rng], Env], settings: RecordVideoSettings, rng: Rng) -> None:
        self.make_env, self.settings, self.rng = make_env, settings, rng
        self.failure = ""
        self.evaluator: Evaluator | None = None
        self.thread: threading.Thread | None = None
        self.must_end = threading.Event()

    @property
    def is_busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def film(self, behavior: str, policy: Policy, path: Path) -> None:
        """Begins a video of an episode."""

        def work() -> None:
            try:
                self.make_video(behavior, policy, path)
            except QuintainError as error:
                self.failure = error.message
            except ANYTHING as error:
                self.failure = in_one_line(error)

        self.thread = threading.Thread(target=work, name="videos", daemon=True)
        self.thread.start()

    def make_video(self, behavior: str, policy: Policy, path: Path) -> None:
        """Plays an episode and writes it, and removes the oldest videos."""
        settings, recorder = self.settings, EpisodeRecorder()
        if self.evaluator is None:
            limit = settings.max_episode_steps
            self.evaluator = Evaluator(self.make_env(self.rng.child("env")), 1, self.rng, max_episode_steps=limit)
        must_end, is_greedy = self.must_end.is_set, settings.deterministic
        if self.evaluator.play({behavior: policy}, deterministic=is_greedy, should_stop=must_end, on_step=recorder):
            save_webp(path, recorder.frames, settings.frames_per_second or recorder.frames_per_second)
            found = {each: _FILE_NAME.fullmatch(each.name) for each in path.parent.iterdir()}
            steps = {each: int(match[1]) for each, match in found.items() if match}
            for each in sorted(steps, key=steps.__getitem__)[: -settings.keep]:
                each.unlink(missing_ok=True)

    def close(self) -> None:
        """Lets a video that is being made be completed, for a moment, and closes the environment."""
        if self.thread is not None:
            self.thread.join(_END_SECONDS)
            self.must_end.set()
            self.thread.join(_END_SECONDS)
        if self.evaluator is not None and not self.is_busy:
            self.evaluator.close()
