"""An episode's pictures become one animation that opens again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quintain.errors import EnvError, SettingsError
from quintain.services.reporting import video

Image = pytest.importorskip("PIL.Image", reason="needs the extra [video], which `make install` installs")


class Draws:
    """An environment whose pictures are squares of a grey that tells the step."""

    frames_per_second = 20.0
    renders_ends = False

    def __init__(self) -> None:
        self.step = 0

    def render(self) -> Any:
        self.step += 1
        return np.full((16, 24, 3), 10 * self.step, np.uint8)


def test_the_pictures_of_one_episode_are_kept() -> None:
    recorder, env = video.EpisodeRecorder(), Draws()
    for has_ended in (False, False, False, True, False):
        recorder(env, has_ended)
    assert [frame[0, 0, 0] for frame in recorder.frames] == [10, 20, 30]
    assert recorder.frames_per_second == 20.0


def test_the_end_is_kept_where_the_environment_shows_it() -> None:
    recorder, env = video.EpisodeRecorder(), Draws()
    env.renders_ends = True
    for has_ended in (False, False, False, True, False, True):
        recorder(env, has_ended)
    assert [frame[0, 0, 0] for frame in recorder.frames] == [10, 20, 30, 40]


def test_a_long_episode_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "MAX_FRAMES", 4)
    recorder, env = video.EpisodeRecorder(), Draws()
    for _ in range(9):
        recorder(env, False)
    assert len(recorder.frames) == 4


def test_pictures_become_smaller_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    # One picture of 16 by 24 has 1152 bytes, so the fourth is one too many; halved, fifteen fit.
    monkeypatch.setattr(video, "MAX_BYTES", 3 * 1152 + 1000)
    recorder, env = video.EpisodeRecorder(), Draws()
    sizes = []
    for _ in range(12):
        recorder(env, False)
        sizes.append({frame.shape for frame in recorder.frames})
    assert sizes == [{(16, 24, 3)}] * 3 + [{(8, 12, 3)}] * 9
    assert [frame[3, 3, 0] for frame in recorder.frames] == [10 * (i + 1) for i in range(12)]


def test_halving_takes_the_mean_of_each_four_pixels() -> None:
    frame = np.zeros((3, 4, 3), np.uint8)  # the odd last row is left out
    frame[:2, :2, 0] = [[0, 40], [80, 120]]
    assert video._half(frame)[..., 0].tolist() == [[60, 0]]


@pytest.mark.parametrize(
    "picture",
    [None, np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3), np.float32)],
    ids=["none", "grey", "with alpha", "floats"],
)
def test_an_environment_without_pictures_is_named(picture: Any) -> None:
    class Blind(Draws):
        def render(self) -> Any:
            return picture

    with pytest.raises(EnvError, match=r"gives no pictures: render\(\) returned .*must return uint8") as failed:
        video.EpisodeRecorder()(Blind(), False)
    assert failed.value.code == "E0522"


def test_the_file_opens_again_with_its_pictures_and_its_speed(tmp_path: Path) -> None:
    frames = [np.full((16, 24, 3), 40 * (i + 1), np.uint8) for i in range(5)]
    video.save_webp(tmp_path / "a.webp", frames, 20.0)
    with Image.open(tmp_path / "a.webp") as found:
        assert (found.format, found.n_frames, found.size) == ("WEBP", 5, (24, 16))
        for i in range(5):
            found.seek(i)
            assert abs(int(np.asarray(found.convert("RGB")).mean()) - 40 * (i + 1)) <= 3
            found.load()
            # The end is held for a second, so that it is seen before the animation begins again.
            assert found.info["duration"] == (1000 if i == 4 else 50)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(SettingsError, match=r"pip install .*\[video\]'") as failed:
        video.require_pillow()
    assert failed.value.code == "E0242"
