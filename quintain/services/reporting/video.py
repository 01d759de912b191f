"""Saves an episode as one animated WebP file, which every browser shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from quintain.core.extras import install_command
from quintain.errors import EnvError, SettingsError
from quintain.services.files import atomic

if TYPE_CHECKING:
    from types import ModuleType

    from quintain.typing import Array

MAX_FRAMES = 1000
"""Maximum number of frames per file; later ones are left out."""
END_MILLISECONDS = 1000
"""How long the last frame is shown before the animation begins again."""
MAX_BYTES = 128 * 2**20
"""Memory limit of frames before encoding; beyond it all are halved in width and height."""


class Draws(Protocol):
    """The interface of an environment that is recorded."""

    @property
    def frames_per_second(self) -> float: ...
    @property
    def renders_ends(self) -> bool: ...
    def render(self) -> Array | None: ...


class EpisodeRecorder:
    """Records the frames of the first episode of an environment's first lane."""

    def __init__(self) -> None:
        self.frames: list[Array] = []
        self.frames_per_second = 30.0
        self.num_halvings = 0
        self.is_over = False

    def __call__(self, env: Draws, has_ended: bool) -> None:
        """Records a frame; the end, too, where the environment does not show the next episode already."""
        if self.is_over:
            return
        self.is_over = has_ended or len(self.frames) >= MAX_FRAMES
        if self.is_over and not (has_ended and env.renders_ends):
            return
        frame = env.render()
        if frame is None or frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8:
            found = "nothing" if frame is None else f"{frame.dtype} {list(frame.shape)}"
            raise EnvError(
                f"the environment gives no pictures: render() returned {found}, and must return uint8 "
                f'[height, width, 3]; Gymnasium\'s are made with render_mode="rgb_array"',
                code="E0522",
            )
        self.frames_per_second = env.frames_per_second
        for _ in range(self.num_halvings):
            frame = _half(frame)
        self.frames.append(frame.copy())
        if len(self.frames) * self.frames[-1].nbytes > MAX_BYTES:
            self.num_halvings += 1
            self.frames = [_half(each) for each in self.frames]


def require_pillow() -> ModuleType:
    """Imports Pillow, or raises an error with the command that installs it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingsError(
            f"a video needs Pillow ({error}). Install it with: {install_command('video')}", code="E0242"
        ) from error
    return Image


def save_webp(path: Path, frames: Sequence[Array], frames_per_second: float) -> None:
    """Writes frames [height, width, 3] of uint8 as a looping animation, which holds its end for a moment."""
    image = require_pillow()
    first, *rest = [image.fromarray(frame) for frame in frames]
    buffer = io.BytesIO()
    duration = max(1, round(1000 / frames_per_second))
    durations = [*(duration for _ in rest), max(duration, END_MILLISECONDS)]
    first.save(
        buffer, format="WEBP", save_all=True, append_images=rest, duration=durations, loop=0, quality=75, method=4
    )
    try:
        atomic.replace_file(path, buffer.getvalue())
    except OSError as error:
        raise atomic.write_error(error, doing="write the video", directory=path.parent) from error


def _half(frame: Array) -> Array:
    """Returns the image with the mean of each two by two pixels."""
    height, width = frame.shape[0] // 2, frame.shape[1] // 2
    blocks = frame[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    return np.asarray(blocks.mean(axis=(1, 3)), dtype=np.uint8)
