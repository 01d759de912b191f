"""`quintain export` and `quintain eval --video` write what they say, or say in one line why not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from quintain.services.checkpoints import files as checkpoint_files
from tests.cli.conftest import FAST, Command
from tests.trainers import test_loop_of_ones_own


class Drawn(gymnasium.Env[Any, Any]):
    """Walks on a line, and draws itself without a library."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode, self.place, self.age = render_mode, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.place, self.age = 0, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.place += 2 * int(action) - 1
        self.age += 1
        return np.array([self.place], np.float32), 1.0, self.age == 6, False, {}

    def render(self) -> Any:
        if self.render_mode is None:
            return None
        picture = np.zeros((8, 20, 3), np.uint8)
        picture[:, 10 + self.place] = 255
        picture[self.age, :] = 200
        return picture


class NeedsLibrary(Drawn):
    def render(self) -> Any:
        raise gymnasium.error.DependencyNotInstalled('pygame is not installed, run `pip install "gymnasium[x]"`')


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for name, made in (("Drawn-v0", Drawn), ("NeedsLibrary-v0", NeedsLibrary)):
        gymnasium.register(name, entry_point=made)
    yield
    for name in ("Drawn-v0", "NeedsLibrary-v0"):
        del gymnasium.registry[name]


def train(quintain: Command, env: str) -> None:
    answer = quintain("train", "ppo", env, *FAST, "--run-id", "a1", "--quiet")
    assert answer.exit_code == 0, answer.err


@pytest.mark.slow
def test_export_writes_model_and_contract_and_needs_no_environment(quintain: Command, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="needs the extra [export]")
    train(quintain, "Drawn-v0")
    gymnasium.register("Gone-v0", entry_point=Drawn)
    del gymnasium.registry["Gone-v0"]
    config = tmp_path / "runs/a1/config.yaml"
    config.write_text(config.read_text().replace("Drawn-v0", "Gone-v0"))
    answer = quintain("export", "a1")
    assert answer.exit_code == 0, answer.err
    assert answer.out.startswith("wrote runs/a1/export/policy.onnx and policy.json · checkpoint 00000")
    answer = quintain("export", "a1@0", "--out", "elsewhere", "--json")
    assert answer.json["checkpoint"].endswith("-step-0")
    contract = json.loads((tmp_path / "elsewhere/policy.json").read_text())
    assert (contract["run"], contract["step"]) == ("a1", 0)
    assert contract["inputs"][0] == {
        "name": "obs", "dtype": "float32", "shape": ["batch", 1], "low": [-9.0], "high": [9.0],
    }  # fmt: skip


def test_export_of_a_run_that_is_not_there_is_a_usage_error(quintain: Command) -> None:
    answer = quintain("export", "nothing")
    assert answer.exit_code == 3
    assert "E0304" in answer.error


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda about: about.pop("behaviors"), "does not say which spaces"),
        (lambda about: about.update(behaviors=7), "does not say which spaces"),
        (lambda about: about["behaviors"]["default"]["obs"].update(type="pickle"), "no space is a pickle"),
        (lambda about: about["behaviors"]["default"]["obs"].update(shape=[-1]), r"no space is a box of float32 \[-1\]"),
        (lambda about: about["behaviors"]["default"]["obs"].update(dtype="object"), "no space is a box of object"),
        (lambda about: about["behaviors"]["default"].update(mask_size=10**12), "a mask of 1000000000000 does not fit"),
        (lambda about: about["behaviors"]["default"]["action"].update(n=10**14), "can't allocate memory"),
        (
            lambda about: about["behaviors"]["default"]["obs"].update(shape=[2], low=[0, 0], high=[1, 1]),
            "does not fit this one",
        ),
    ],
)
def test_a_checkpoint_that_lies_about_its_spaces_is_refused(
    quintain: Command, tmp_path: Path, change: Any, said: str
) -> None:
    train(quintain, "Drawn-v0")
    for path in (tmp_path / "runs/a1/checkpoints").glob("0*/manifest.json"):
        content = json.loads(path.read_text())
        del content["sha256"], content["signature"]
        change(content["about"])
        # Whoever can change the file can seal it again.
        content["sha256"] = hashlib.sha256(checkpoint_files._dump(content)).hexdigest()
        path.write_bytes(checkpoint_files._dump(content))
    answer = quintain("export", "a1")
    assert answer.exit_code == 4, answer.err
    assert re.search(f"error\\[E0405\\]: .*{said}", answer.error)
    assert not (tmp_path / "runs/a1/export").exists()


def test_an_unknown_format_is_refused(quintain: Command) -> None:
    answer = quintain("export", "a1", "--format", "pickle")
    assert answer.exit_code == 2
    assert "onnx" in answer.error


def test_a_video_is_one_animation_of_the_first_episode(quintain: Command, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra [video]")
    train(quintain, "Drawn-v0")
    answer = quintain("eval", "a1", "--episodes", "3", "--video")
    assert answer.exit_code == 0, answer.err
    [path] = (tmp_path / "runs/a1/videos").iterdir()
    assert f"video runs/a1/videos/{path.name}" in answer.out
    with image.open(path) as found:
        # The first observation and six steps.
        assert (found.format, found.n_frames, found.size) == ("WEBP", 7, (20, 8))
        found.load()
        assert found.info["duration"] == 100
    assert quintain("eval", "a1", "--episodes", "1", "--video", "--json").json["video"].endswith(".webp")
    assert "video" not in quintain("eval", "a1", "--episodes", "1", "--json").json


def test_what_an_environment_needs_to_draw_itself_is_said_in_one_line(quintain: Command, tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image", reason="needs the extra [video]")
    train(quintain, "NeedsLibrary-v0")
    answer = quintain("eval", "a1", "--video")
    assert answer.exit_code == 5
    assert (
        "env 'NeedsLibrary-v0' cannot draw itself: DependencyNotInstalled: pygame is not installed, run" in answer.error
    )
    assert not (tmp_path / "runs/a1/videos").exists()


def test_a_policy_that_blows_up_ends_with_exit_code_6(quintain: Command, tmp_path: Path) -> None:
    answer = quintain("train", "ppo", "Drawn-v0", *FAST, "reward_signals.extrinsic.strength=1e38", "--run-id", "a1")
    assert answer.exit_code == 6
    assert answer.error.startswith("error[E0604]: train/policy_loss became nan in the update at step 64")
    assert "first bad tensor: advantage" in answer.error
    assert len(list((tmp_path / "runs/a1/crash").glob("*.safetensors"))) == 1
    status = json.loads((tmp_path / "runs/a1/status.json").read_text())
    assert (status["state"], status["exit_code"], status["resumable"]) == ("failed", 6, True)


def test_a_nan_of_the_environment_leaves_its_last_steps_behind(
    quintain: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Drawn.step

    def broken(self: Drawn, action: Any) -> Any:
        obs, reward, *rest = step(self, action)
        return obs, float("nan") if self.age == 4 else reward, *rest

    monkeypatch.setattr(Drawn, "step", broken)
    answer = quintain("train", "ppo", "Drawn-v0", *FAST, "--run-id", "a1")
    assert answer.exit_code == 6
    assert "error[E0601]: the environment returned a reward that is not finite in lane 0, step 3" in answer.err
    assert "note: the last steps are in runs/a1/crash/" in answer.err
    answer = quintain("train", "ppo", "Drawn-v0", *FAST, "env.on_nonfinite=clamp", "--run-id", "a2", "--quiet")
    assert answer.exit_code == 0, answer.err
    rows = [json.loads(line) for line in (tmp_path / "runs/a2/metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["rollout/clamped_steps"] > 0


def test_a_loop_has_no_policy_to_act_with(quintain: Command, tmp_path: Path) -> None:
    (tmp_path / "count.yaml").write_text(test_loop_of_ones_own.RUN_FILE)
    assert quintain("train", "count.yaml", "--run-id", "count", "--quiet").exit_code == 0
    for command in ("eval", "export"):
        error = quintain(command, "count").error
        assert (
            "which has no policy to act with; evaluate within that loop's code, or have it hosted by a trainer" in error
        )
