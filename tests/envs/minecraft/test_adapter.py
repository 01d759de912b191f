"""The adapter takes the simulator's quirks away: seeds, copies, ends, noise, info and spaces."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.utils.env_checker import check_env

from quintain.envs.minecraft import (
    CommandsCallback,
    FastResetCallback,
    JudgeResetCallback,
    MaskActionsCallback,
    MinecraftCallback,
    MinecraftEnv,
    PrevActionCallback,
    RewardsCallback,
    StandInSim,
    SummonMobsCallback,
    TaskCallback,
    minecraft_sim,
)
from quintain.envs.minecraft.tasks import look
from quintain.errors import EnvError, SettingsError

NOOP = {"buttons": np.array([0]), "camera": np.array([60])}
TURN = {"buttons": np.array([1]), "camera": np.array([60 + 5])}


def adapted(*callbacks: MinecraftCallback, **options: Any) -> MinecraftEnv:
    sim_options = {k: options.pop(k) for k in ("faults", "obs_size", "action_type") if k in options}
    sim_options = {"obs_size": (16, 16), "num_empty_frames": 2, **sim_options}
    return MinecraftEnv(lambda: StandInSim(callbacks=callbacks, **sim_options), **options)


class Dies(MinecraftCallback):
    """The player dies at a step: the engine reports both flags."""

    def before_step(self, sim: StandInSim, action: Any) -> Any:
        sim.engine.health = 0.0
        return action


class Listens(MinecraftCallback):
    """Writes down the order of hooks."""

    def __init__(self, name: str, heard: list[str]) -> None:
        self.name, self.heard = name, heard

    def before_reset(self, sim: StandInSim, reset_flag: bool) -> bool:
        self.heard.append(f"{self.name} before_reset")
        return reset_flag

    def after_reset(self, sim: StandInSim, obs: Any, info: Any) -> Any:
        self.heard.append(f"{self.name} after_reset")
        return obs, info

    def after_step(self, sim: StandInSim, obs: Any, reward: float, *ends: Any) -> Any:
        self.heard.append(f"{self.name} after_step {reward}")
        return (obs, reward + 1.0, *ends)

    def before_step(self, sim: StandInSim, action: Any) -> Any:
        self.heard.append(f"{self.name} before_step")
        return action

    def before_render(self, sim: StandInSim, image: Any) -> Any:
        self.heard.append(f"{self.name} before_render")
        return image

    def after_render(self, sim: StandInSim, image: Any) -> Any:
        self.heard.append(f"{self.name} after_render")
        return np.full_like(image, len(self.heard))

    def before_close(self, sim: StandInSim) -> None:
        self.heard.append(f"{self.name} before_close")

    def after_close(self, sim: StandInSim) -> None:
        self.heard.append(f"{self.name} after_close")


def test_the_stand_in_has_the_quirks() -> None:
    sim = StandInSim(obs_size=(24, 16), callbacks=[Dies()], faults={"error_at": 2})
    with pytest.raises(TypeError):
        sim.reset(seed=1)  # type: ignore[call-arg]
    obs, info = sim.reset()
    assert obs["image"].shape == (16, 24, 3)
    assert sim.observation_space["image"].shape == (24, 16, 3)
    assert sim.action_space["buttons"].nvec.tolist() == [8641]
    assert sim.action_space["camera"].nvec.tolist() == [121]
    assert info["pov"].ndim == 3
    action = {"buttons": np.array([0]), "camera": np.array([60])}
    _, _, terminated, truncated, _ = sim.step(action)
    assert terminated
    assert truncated
    assert "buttons" not in action
    obs, _, terminated, _, info = sim.step(dict(NOOP))
    assert terminated
    assert info["error"]
    assert is_noise(obs["image"])


def is_noise(image: Any) -> bool:
    """Neighbouring pixels of noise differ by 85 of 255 in the mean; those of a meadow hardly."""
    return bool(np.abs(np.diff(image.astype(int), axis=-2)).mean() > 50)


def test_hooks_run_in_the_order_of_the_list_and_pass_results_on() -> None:
    heard: list[str] = []
    env = adapted(Listens("a", heard), Listens("b", heard))
    env.reset(seed=0)
    assert env.step(NOOP)[1] == 2.0
    # The twelfth hook's picture is the one that is seen.
    assert set(env.render().reshape(-1).tolist()) == {12}
    env.close()
    assert heard == [
        "a before_reset", "b before_reset", "a after_reset", "b after_reset", "a before_step", "b before_step",
        "a after_step 0.0", "b after_step 1.0", "a before_render", "b before_render", "a after_render",
        "b after_render", "a before_close", "b before_close", "a after_close", "b after_close",
    ]  # fmt: skip


def test_faults_follow_their_script(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if slept[-3:] == [1.0] * 3:
            raise TimeoutError("it hangs")

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("quintain.envs.minecraft.stand_in.time.sleep", sleep)
    monkeypatch.setattr("quintain.envs.minecraft.stand_in.os._exit", leave)

    def played(steps: int, **faults: Any) -> StandInSim:
        slept.clear()
        sim = StandInSim(obs_size=(8, 8), num_empty_frames=0, faults=faults)
        sim.reset()
        for _ in range(steps):
            sim.step(dict(NOOP))
        return sim

    for fault, error in (("raise_at", ConnectionResetError), ("hang_at", TimeoutError), ("exit_at", SystemExit)):
        played(2, **{fault: 3})
        with pytest.raises(error):
            played(3, **{fault: 3})
    played(2, slow_reset_seconds=0.5, slow_step_seconds=0.25)
    assert slept == [0.5, 0.25, 0.25]
    # A Pareto distribution of shape 2 has a mean of 2 and no bound: 0.5 times as much, sometimes many times.
    slow = played(0, slow_reset_seconds=0.5, pareto_shape=2.0)
    for _ in range(1999):
        slow.reset()
    assert min(slept) >= 0.5
    assert sum(slept) / 2000 == pytest.approx(1.0, rel=0.15)
    assert max(slept) > 5.0
    assert sum(map(len, played(3, grow_bytes=1000).leak)) == 3000


def test_commands_are_carried_out_and_written_down() -> None:
    commands = CommandsCallback(["/tp @p ~2 ~ -1.5", "/summon minecraft:cow ~1 ~ ~3", "/time set day"])
    env = adapted(commands)
    _, info = env.reset(seed=0)
    # The player begins at 0.5, 0.5.
    assert (info["player_pos"]["x"], info["player_pos"]["z"]) == (2.5, -1.5)
    assert [(each.kind, each.x, each.z) for each in env.sim.engine.entities] == [("cow", 3.5, 1.5)]
    assert env.sim.commands == commands.commands
    env.sim.execute_cmd("/kill @e[type=!player]")
    assert env.sim.engine.entities == []


def test_seeds_decide_the_episode_and_actions_are_copied() -> None:
    first, second = look(size=24), look(size=24)
    for seed in (3, 4, 3):
        (a, _), (b, _) = first.reset(seed=seed), second.reset(seed=seed)
        np.testing.assert_array_equal(a["image"], b["image"])
    other, _ = second.reset(seed=5)
    assert (other["image"] != a["image"]).any()
    action = {"buttons": torch.tensor([0]), "camera": torch.tensor([3])}
    first.step(action)
    assert set(action) == {"buttons", "camera"}


def test_a_fast_reset_takes_the_seed_too() -> None:
    env = adapted(FastResetCallback(50.0))
    env.reset(seed=1)
    places = [env.reset(seed=seed)[1]["player_pos"] for seed in (7, 8, 7)]
    assert places[0] == places[2]
    assert places[0] != places[1]


class Sealed(StandInSim):
    """Shows no engine: only what MinecraftSim's documentation lists."""

    @property
    def env(self) -> Any:
        raise AttributeError("env")


def test_a_simulator_that_shows_no_engine_resets_with_a_seed_all_the_same() -> None:
    env = MinecraftEnv(lambda: Sealed(obs_size=(16, 16)))
    obs, _ = env.reset(seed=3)
    assert obs["image"].shape == (16, 16, 3)


def test_a_time_limit_truncates_and_a_death_terminates() -> None:
    env = adapted(JudgeResetCallback(3))
    env.reset(seed=0)
    assert [env.step(NOOP)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    dying = adapted(Dies())
    dying.reset(seed=0)
    assert dying.step(NOOP)[2:4] == (True, False)
    as_it_is = adapted(JudgeResetCallback(1), judge_truncates=False)
    as_it_is.reset(seed=0)
    assert as_it_is.step(NOOP)[2:4] == (True, False)


def test_a_broken_connection_raises_and_returns_no_noise() -> None:
    env = adapted(faults={"error_at": 2})
    env.reset(seed=0)
    env.step(NOOP)
    with pytest.raises(EnvError, match="lost its connection: timed out") as raised:
        env.step(NOOP)
    assert raised.value.code == "E0524"


class Unwell(MinecraftCallback):
    """Says at a reset that the connection broke, and cannot draw."""

    def __init__(self, error: str = "") -> None:
        self.error = error

    def after_reset(self, sim: StandInSim, obs: Any, info: Any) -> Any:
        return obs, {**info, "error": self.error}

    def before_render(self, sim: StandInSim, image: Any) -> Any:
        raise AttributeError("'MinecraftSim' object has no attribute 'info'")


def test_a_connection_that_breaks_in_a_reset_raises_too_and_pictures_need_no_renderer() -> None:
    with pytest.raises(EnvError, match="lost its connection: no server"):
        adapted(Unwell("no server")).reset(seed=0)
    env = adapted(Unwell())
    obs, _ = env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), obs["image"])


def test_info_is_small_and_counters_are_cumulative() -> None:
    mobs = SummonMobsCallback([{"name": "sheep", "number": 1, "range_x": (0, 0), "range_z": (2, 2)}])
    rule = {"event": "kill_entity", "identity": "x", "objects": ["sheep"], "reward": 5.0, "max_reward_times": 1}
    env = adapted(mobs, RewardsCallback([rule]))
    _, info = env.reset(seed=0)
    assert "pov" not in info
    # Down to its body: the eyes are above a sheep of 1.3 at a distance of 2.
    for _ in range(2):
        env.step({"buttons": np.array([1]), "camera": np.array([10 * 11 + 5])})
    rewards, infos = [], []
    for _ in range(6):
        _, reward, _, _, info = env.step({"buttons": np.array([4]), "camera": np.array([60])})
        rewards.append(reward)
        infos.append(info)
    # Two hits of 4 kill a sheep of 8; it cannot be hit again for 4 ticks.
    assert rewards == [0, 0, 0, 0, 5.0, 0]
    assert infos[-1]["kill_entity"] == {"sheep": 1.0}
    assert infos[-1]["damage_dealt"] == {"sheep": 8.0}


def test_spaces_have_the_shape_of_the_image_and_actions_by_name() -> None:
    env = adapted(obs_size=(24, 16), buttons=("", "forward+jump", "inventory"), yaw_turns=(-10.0, 0.0, 10.0))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.action_space["camera"].nvec.tolist() == [3]
    _, _, _, _, info = env.step({"buttons": np.array([1]), "camera": np.array([2])})
    assert info["player_pos"]["yaw"] == pytest.approx(10.0)
    assert info["player_pos"]["z"] == pytest.approx(0.5 + 0.215 * np.cos(np.radians(10.0)))
    engine = adapted(action_type="env")
    engine.reset(seed=0)
    action = {**engine.action_space.sample(), "forward": 0, "back": 0, "camera": np.array([0.0, 33.0], np.float32)}
    assert engine.step(action)[4]["player_pos"]["yaw"] == pytest.approx(33.0)


def test_a_mask_on_actions_wins() -> None:
    env = adapted(MaskActionsCallback(forward=0))
    env.reset(seed=0)
    _, _, _, _, info = env.step({"buttons": np.array([288]), "camera": np.array([60])})
    assert (info["player_pos"]["x"], info["player_pos"]["z"]) == (0.5, 0.5)


def test_entries_of_callbacks_are_declared_kept_or_refused() -> None:
    task = TaskCallback([{"name": "hunt", "text": "kill a sheep"}])
    space = {"env_prev_action": Dict({"camera": Box(-180.0, 180.0, (2,), np.float64)})}
    env = adapted(task, PrevActionCallback(), obs_spaces=space)
    obs, _ = env.reset(seed=0)
    assert set(obs) == {"image", "env_prev_action"}
    obs, *_ = env.step(TURN)
    assert obs["env_prev_action"]["camera"].tolist() == [0.0, 10.0]
    shown_once = adapted(task, obs_spaces={"task": Dict({})})
    shown_once.reset(seed=0)
    obs, *_ = shown_once.step(NOOP)
    assert obs["task"]["text"] == "kill a sheep"
    with pytest.raises(EnvError, match="no 'goal' in its observation"):
        adapted(obs_spaces={"goal": Dict({})}).reset(seed=0)


def test_a_restart_is_between_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("quintain.envs.minecraft.restarts.time.monotonic", lambda: now[0])
    env = adapted(restart_interval=10.0)
    env.reset(seed=0)
    first = env.sim
    now[0] = 15.0
    # The episode goes on, and ends where it would have.
    assert env.step(NOOP)[2:4] == (False, False)
    assert env.sim is first
    now[0] = 21.0
    obs, _, terminated, truncated, _ = env.step(NOOP)
    assert (terminated, truncated) == (False, True)
    assert not is_noise(obs["image"])
    env.reset(seed=1)
    assert env.sim is not first


def test_gymnasiums_checker_finds_nothing(recwarn: pytest.WarningsRecorder) -> None:
    check_env(look(size=24), skip_render_check=True)
    assert [str(each.message) for each in recwarn] == []


def test_the_real_simulator_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another, until a package in its place answers with the stand-in."""
    for name in ("bin", "site", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("MINESTUDIO_DIR", str(tmp_path / "home"))
    monkeypatch.delenv("MINESTUDIO_GPU_RENDER", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def refusal() -> str:
        with pytest.raises(SettingsError) as raised:
            minecraft_sim()
        assert raised.value.code == "E0242"
        assert "minestudio" not in sys.modules
        return raised.value.message

    def install(name: str, said: str = "") -> None:
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho '{said}' >&2\n")
        (tmp_path / "bin" / name).chmod(0o755)

    assert "the package minestudio is not installed" in refusal()
    (tmp_path / "site/minestudio").mkdir()
    (tmp_path / "site/minestudio/__init__.py").touch()
    stand_in = "from quintain.envs.minecraft import StandInSim as MinecraftSim\n"
    (tmp_path / "site/minestudio/simulator.py").write_text(stand_in)
    assert "there is no java on the PATH" in refusal()
    install("java", 'openjdk version "17.0.2" 2022-01-18')
    assert "there is no xvfb-run on the PATH" in refusal()
    monkeypatch.setenv("MINESTUDIO_GPU_RENDER", "1")
    assert "there is no vglrun on the PATH" in refusal()
    monkeypatch.delenv("MINESTUDIO_GPU_RENDER")
    install("xvfb-run")
    assert "there is no engine below" in refusal()
    (tmp_path / "home/engine").mkdir()
    assert "java on the PATH is 'openjdk version \"17.0.2\" 2022-01-18', and the engine needs version 1.8" in refusal()
    install("java", 'openjdk version "1.8.0_392"')
    try:
        obs, _ = minecraft_sim(num_empty_frames=0).reset(seed=0)
    finally:
        sys.modules.pop("minestudio.simulator", None)
        sys.modules.pop("minestudio", None)
    assert obs["image"].shape == (128, 128, 3)


def test_no_more_simulators_start_at_the_same_time_than_there_are_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    inside, most, lock = [0], [0], threading.Lock()

    class Slow(MinecraftCallback):
        def before_reset(self, sim: StandInSim, reset_flag: bool) -> bool:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            threading.Event().wait(0.05)
            with lock:
                inside[0] -= 1
            return reset_flag

    def play(limit: int | None) -> None:
        adapted(Slow(), max_starting=limit).reset(seed=0)

    for limit, expected in ((2, range(1, 3)), (None, range(4, 9))):
        most[0] = 0
        threads = [threading.Thread(target=play, args=(limit,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert most[0] in expected
