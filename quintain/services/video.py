"""Pictures of an episode as one animated WebP file, which every browser shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quintain.errors import EnvError, SettingsError
from quintain.services import atomic

if TYPE_CHECKING:
    from quintain.typing import Array

MAX_FRAMES = 1000
"""Pictures in one file; what comes after them is left out."""


class EpisodeRecorder:
    """Keeps the pictures of the first episode of an environment's first lane."""

    def __init__(self) -> None:
        self.frames: list[Array] = []
        self.frames_per_second = 30.0
        self.is_over = False

    def __call__(self, env: Any, has_ended: bool) -> None:
        """Takes a picture; at the end of the episode the environment already shows the next one."""
        self.is_over = self.is_over or has_ended or len(self.frames) >= MAX_FRAMES
        if self.is_over:
            return
        frame = env.render()
        if frame is None or frame.ndim != 3:
            raise EnvError("the environment gives no pictures: render() must return [height, width, 3]", code="E0522")
        self.frames_per_second = env.frames_per_second
        self.frames.append(frame.copy())


def require_pillow() -> Any:
    """Imports the library that writes pictures, or says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingsError(
            f"a video needs Pillow ({error}). Install it with: pip install 'quintain[video]'", code="E0242"
        ) from error
    return Image


def save_webp(path: Path, frames: Sequence[Array], frames_per_second: float) -> None:
    """Writes pictures [height, width, 3] of uint8 as an animation that repeats."""
    image = require_pillow()
    first, *rest = [image.fromarray(frame) for frame in frames]
    buffer = io.BytesIO()
    duration = max(1, round(1000 / frames_per_second))
    first.save(
        buffer, format="WEBP", save_all=True, append_images=rest, duration=duration, loop=0, quality=75, method=4
    )
    try:
        atomic.replace_file(path, buffer.getvalue())
    except OSError as error:
        raise atomic.write_error(error, doing="write the video", directory=path.parent) from error
