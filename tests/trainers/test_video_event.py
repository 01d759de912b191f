"""Videos while a run trains: what they show, that they change nothing, and that training does not wait for them."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from PIL import Image

from quintain import Trainer
from quintain.core.rng import Rng
from quintain.envs.gym.make import gym_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError
from quintain.placements.camera import FilmingThread
from quintain.settings.run import EnvWorkerSettings
from quintain.trainers.events import EventContext
from quintain.trainers.settings import RecordVideoSettings
from quintain.trainers.video_event import RecordVideo

SMALL: dict[str, Any] = {"num_lanes": 2, "num_steps": 8, "batch_size": 8, "num_epochs": 1, "writers": []}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_worker_draws_what_a_lane_of_this_process_draws() -> None:
    settings = GymSettings(id="Minecraft/Look-v0", kwargs={"render_mode": "rgb_array", "size": 16})
    team = Hosting.from_settings(EnvWorkerSettings(num_workers=1))
    here, there = (gym_env(settings, 1, Rng(3), hosting=hosting) for hosting in (None, team))
    action = {"buttons": torch.zeros(1, 1, dtype=torch.long), "camera": torch.full((1, 1), 4)}
    for env in (here, there):
        env.reset()
        env.step(action)
    frame = here.render()
    assert frame is not None
    assert frame.shape == (180, 320, 3)
    assert np.array_equal(frame, there.render())
    has_ended = False
    while not has_ended:
        has_ended = bool(here.step(action).truncated[0])
        there.step(action)
        assert np.array_equal(here.render(), there.render())
    assert here.renders_ends
    assert here.frames_per_second == there.frames_per_second == 5.0
    for env in (here, there):
        env.close()


def test_an_episode_is_filmed_beside_training() -> None:
    event = {"type": "record_video", "every_updates": 2, "frames_per_second": 10.0}
    trainer = Trainer("ppo", "Minecraft/Look-v0", events=[event], **SMALL, **{"run.id": "filmed"})
    trainer.train(32)
    trainer.close()
    [path] = Path("runs/filmed/videos").iterdir()
    assert path.name == "step-000000032.webp"
    with Image.open(path) as video:
        video.load()
        assert (video.size, video.info["duration"]) == ((320, 180), 100)
        assert 1 < video.n_frames <= 21


class Slow:
    """An environment of one lane that waits to be let go."""

    def __init__(self) -> None:
        self.may_go, self.was_asked = threading.Event(), threading.Event()

    def __call__(self, rng: Rng) -> Any:
        self.was_asked.set()
        self.may_go.wait(60)
        raise RuntimeError("it never came")


def test_training_does_not_wait_and_what_cannot_be_filmed_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    slow = Slow()
    trainer = Trainer("ppo", "CartPole-v1", events=[], **{**SMALL, "writers": ["console"]})
    context = EventContext(lambda lanes, rng: None, Rng(0), trainer.budget, make_camera=partial(FilmingThread, slow))  # type: ignore[arg-type, return-value]
    event = RecordVideo(RecordVideoSettings(type="record_video", every_updates=1), context)
    trainer.events.add(event.when, event)
    trainer.train(16)
    assert slow.was_asked.wait(60)
    trainer.train(48)
    assert isinstance(event.camera, FilmingThread)
    assert event.camera.is_busy, "updates went on while the video was being made"
    slow.may_go.set()
    assert event.camera.thread is not None
    event.camera.thread.join()
    trainer.train(80)
    trainer.close()
    assert capfd.readouterr().out.count("no more videos: RuntimeError: it never came") == 1


def test_an_environment_that_exists_already_is_refused() -> None:
    with pytest.raises(SettingsError, match="record_video makes an environment of its own"):
        Trainer("ppo", CartPoleEnv(), events=[{"type": "record_video", "every_updates": 1}],
                **{**SMALL, "num_lanes": 1, "num_steps": 16})  # fmt: skip


def test_a_factory_without_pictures_is_told_also_by_its_only_video(capfd: pytest.CaptureFixture[str]) -> None:
    event, settings = {"type": "record_video", "every_updates": 1}, {**SMALL, "writers": ["console"]}
    trainer = Trainer("ppo", partial(gymnasium.make, "CartPole-v1"), events=[event], **settings)
    trainer.train(16)
    [camera] = [entry.function.camera for entry in trainer.events.entries if isinstance(entry.function, RecordVideo)]
    assert isinstance(camera, FilmingThread)
    assert camera.thread is not None
    camera.thread.join()
    trainer.close()
    assert "the environment gives no pictures" in camera.failure
    assert 'render_mode="rgb_array"' in camera.failure
    said = capfd.readouterr().out
    assert said.count("warning[W0505]: no more videos: the environment gives no pictures") == 1, said
