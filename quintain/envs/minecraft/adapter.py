"""Makes an honest Gymnasium environment of a `MinecraftSim`, real or the stand-in.

`reset` takes seeds, actions are copied, ends are either terminations or truncations, a broken connection raises, so
that noise is never learned from, and info stays small. Imports nothing of MineStudio.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, MultiDiscrete

from quintain.envs.gym.protocols import Space
from quintain.envs.minecraft import actions
from quintain.envs.minecraft.restarts import RestartClock, place_to_start
from quintain.errors import EnvError, SettingsError
from quintain.typing import Action, Keyword, Keywords, Observation

if TYPE_CHECKING:
    from quintain.typing import Array, Info

Simulator: TypeAlias = Keyword
"""A MinecraftSim, or an object with its interface."""

LIGHT_INFO = (
    "kill_entity", "mine_block", "craft_item", "pickup", "break_item", "use_item", "damage_dealt", "custom",
    "player_pos", "health", "food_level", "is_success", "task",
)  # fmt: skip
"""Entries of info that are kept by default: everything that is small."""


class MinecraftEnv(gymnasium.Env[Observation, Action]):
    """Wraps a simulator that `make_sim` makes; it is made again where its restart is due.

    Args:
        make_sim: Makes a simulator.
        obs_spaces: Spaces of further entries of the observation, which callbacks add. An entry that is missing in a
            step keeps its last value of the episode; entries that are not declared are left out.
        buttons: Combinations of buttons, such as "", "forward" or "forward+jump", that an agent chooses from; by
            default all 8641. The camera switch is added to each.
        pitch_turns, yaw_turns: Degrees, each rounded to a bin, that the camera may turn in a step; with `buttons`.
        judge_truncates: Take a JudgeResetCallback out of the simulator and truncate at its time limit, where it would
            say that the episode terminated.
        restart_interval: Seconds after which the simulator is made again when its episode ends; an episode that goes
            on for as long again is truncated. None for never.
        max_starting: How many simulators of this machine may start or reset at the same time; None for any number.
        info_entries: Entries of info that are kept.
    """

    def __init__(
        self,
        make_sim: Callable[[], Simulator],
        *,
        obs_spaces: Mapping[str, Space] | None = None,
        buttons: Sequence[str] | None = None,
        pitch_turns: Sequence[float] = (0.0,),
        yaw_turns: Sequence[float] = (0.0,),
        judge_truncates: bool = True,
        restart_interval: float | None = None,
        max_starting: int | None = None,
        info_entries: Sequence[str] = LIGHT_INFO,
        frames_per_second: float = 20.0,
        render_mode: str = "rgb_array",
    ) -> None:
        self.make_sim = make_sim
        self.judge_truncates, self.max_starting = judge_truncates, max_starting
        self.restarts = RestartClock(restart_interval)
        self.info_entries = tuple(info_entries)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": frames_per_second}
        if render_mode not in self.metadata["render_modes"]:
            raise SettingsError(f"render_mode {render_mode!r} of Minecraft; expected rgb_array")
        self.render_mode = render_mode
        self.time_limit: int | None = None
        with place_to_start(max_starting):
            self.sim = self._make()
        width, height = self.sim.obs_size
        # The simulator's own space has height and width exchanged.
        spaces: dict[str, Space] = {
            "image": Box(0, 255, (height, width, 3), np.uint8),
            **(obs_spaces or {}),
        }
        self.observation_space, self.entries = Dict(spaces), tuple(spaces)
        self.codes: tuple[Array, Array] | None = None
        """Button and camera indices of a small action space."""
        self.action_space = self.sim.action_space
        if buttons is not None:
            pressed = [[name for name in each.split("+") if name] for each in buttons]
            switched = [each if each == ["inventory"] else [*each, "camera"] for each in pressed]
            turns = [actions.camera_index(pitch, yaw) for pitch in pitch_turns for yaw in yaw_turns]
            self.codes = np.array([actions.buttons_index(each) for each in switched]), np.array(turns)
            self.action_space = Dict({"buttons": MultiDiscrete([len(buttons)]), "camera": MultiDiscrete([len(turns)])})
        self.seen: Observation = {}
        self.age = 0

    def _make(self) -> Simulator:
        sim = self.make_sim()
        self.restarts.begin()
        if self.judge_truncates:
            judges = [each for each in sim.callbacks if type(each).__name__ == "JudgeResetCallback"]
            self.time_limit = min((int(each.time_limit) for each in judges), default=None)
            sim.callbacks = [each for each in sim.callbacks if each not in judges]
        return sim

    def reset(self, *, seed: int | None = None, options: Keywords | None = None) -> tuple[Observation, Info]:
        """Starts an episode; the seed reaches the engine, which uses it where it makes a new world."""
        super().reset(seed=seed)
        with place_to_start(self.max_starting):
            if self.restarts.is_due():
                self.sim.close()
                self.sim = self._make()
            set_seed = getattr(getattr(self.sim, "env", None), "seed", None)
            if seed is not None and set_seed is not None:
                set_seed(seed)
            obs, info = self.sim.reset()
        self._refuse_error(info)
        self.seen, self.age = {}, 0
        return self._observed(obs), self._reported(info)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.sim.step(self._coded(action))
        self._refuse_error(info)
        self.age += 1
        # The simulator sets both for every end, and its engine knows no time limit.
        terminated = bool(terminated)
        is_late = (self.time_limit is not None and self.age >= self.time_limit) or self.restarts.is_due(2)
        truncated = not terminated and (bool(truncated) or is_late)
        return self._observed(obs), float(reward), terminated, truncated, self._reported(info)

    def _coded(self, action: Action) -> Action:
        """Returns a copy of the action in the simulator's coding, which the simulator may change."""
        if "buttons" not in action:
            return {k: int(v) if k != "camera" else np.array(v, np.float64) for k, v in action.items()}
        coded = {name: np.array([int(np.asarray(action[name]).reshape(-1)[0])]) for name in ("buttons", "camera")}
        if self.codes is not None:
            buttons, camera = self.codes
            coded = {"buttons": buttons[coded["buttons"]], "camera": camera[coded["camera"]]}
        if self.sim.action_type != "agent":
            return dict(self.sim.agent_action_to_env_action(coded))
        return coded

    def _refuse_error(self, info: Info) -> None:
        """Raises where the connection broke: what the simulator returned with it is noise."""
        if info.get("error"):
            reason = " ".join(str(info["error"]).split())[:200]
            raise EnvError(f"Minecraft lost its connection: {reason}", code="E0524")

    def _observed(self, obs: Observation) -> Observation:
        """Returns the declared entries; one that is missing keeps its last value."""
        self.seen = {**self.seen, **{name: obs[name] for name in self.entries if name in obs}}
        if missing := [name for name in self.entries if name not in self.seen]:
            raise EnvError(
                f"Minecraft returned no {missing[0]!r} in its observation, which obs_spaces declares; add the callback "
                f"that makes it, or leave it out of obs_spaces",
                code="E0511",
            )
        return dict(self.seen)

    def _reported(self, info: Info) -> Info:
        return {name: info[name] for name in self.info_entries if name in info}

    def render(self) -> Array:
        try:
            return np.asarray(self.sim.render(), np.uint8)
        except (AttributeError, KeyError, TypeError):
            # The simulator can only draw after a call with a callback.
            return np.asarray(self.seen["image"], np.uint8)

    def close(self) -> None:
        self.sim.close()


def minecraft_sim(
    callbacks: Sequence[Keyword] = (),
    restart_interval: float | None = 3600.0,
    max_starting: int | None = 4,
    **kwargs: Keyword,
) -> MinecraftEnv:
    """Makes the environment of a real `MinecraftSim` with these keyword arguments; needs MineStudio, Java 8, a virtual
    display and its engine, and says which of them is missing."""
    home = Path(os.environ.get("MINESTUDIO_DIR", Path(tempfile.gettempdir()) / "MineStudio"))
    draws_on_gpu = os.environ.get("MINESTUDIO_GPU_RENDER") == "1"
    display = "vglrun" if draws_on_gpu else "xvfb-run"
    needs_display = draws_on_gpu or sys.platform == "linux"
    missing = (
        (find_spec("minestudio") is None, "the package minestudio is not installed: pip install minestudio"),
        (shutil.which("java") is None, "there is no java on the PATH: install a JDK 8"),
        (
            needs_display and shutil.which(display) is None,
            f"there is no {display} on the PATH, which gives it a display: install "
            f"{'VirtualGL, or unset MINESTUDIO_GPU_RENDER' if draws_on_gpu else 'xvfb'}",
        ),
        (
            not (home / "engine").is_dir(),
            f"there is no engine below {home}: download it with `python -m minestudio.simulator.entry`, or set "
            f"MINESTUDIO_DIR to where it is",
        ),
    )
    for is_missing, reason in missing:
        if is_missing:
            raise SettingsError(f"Minecraft cannot start: {reason}. Minecraft/Look-v0 works offline", code="E0242")
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    if '"1.8.' not in said:
        found = said.partition("\n")[0][:100]
        raise SettingsError(
            f"Minecraft cannot start: java on the PATH is {found!r}, and the engine needs version 1.8; install a JDK 8 "
            f"and put it first",
            code="E0242",
        )
    simulator = importlib.import_module("minestudio.simulator").MinecraftSim
    options = {"obs_size": (128, 128), **kwargs}
    return MinecraftEnv(
        lambda: simulator(callbacks=list(callbacks), **options),
        restart_interval=restart_interval,
        max_starting=max_starting,
    )
