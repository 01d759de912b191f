"""Tasks in the stand-in's meadow, as Gymnasium ids: Minecraft/Look-v0, Minecraft/Hunt-v0, Minecraft/Recall-v0.

The optimal return of each is known: 1 for Look and Recall, 30 for Hunt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import gymnasium
import numpy as np

from quintain.envs.minecraft.adapter import MinecraftEnv
from quintain.envs.minecraft.callbacks import (
    JudgeResetCallback,
    MaskActionsCallback,
    MinecraftCallback,
    RewardsCallback,
    SummonMobsCallback,
    angle_between,
    bearing,
)
from quintain.envs.minecraft.stand_in import StandInSim
from quintain.errors import SettingsError

if TYPE_CHECKING:
    from quintain.envs.minecraft.callbacks import Stepped
    from quintain.typing import Action, Array, Info, Keyword, Keywords, Observation

YAW_TURNS = (-10.0, -3.2154, 0.0, 3.2154, 10.0)
_BUTTONS = ("", "forward", "attack")
_COLOURS = {"red": (208, 32, 32), "blue": (36, 64, 216)}


class LookTask(MinecraftCallback):
    """Turn to the striped post, which is in view: each step pays the part of the first angle by which it came nearer.

    The episode ends when the post is in the middle, and then pays the rest, so a success returns 1.
    """

    tolerance = 4.0

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        draws = sim.np_random
        side = 1.0 if draws.random() < 0.5 else -1.0
        angle = np.radians(sim.engine.yaw + side * draws.uniform(12.0, 32.0))
        away = draws.uniform(4.0, 6.0)
        sim.execute_cmd("/kill @e[type=!player]")
        sim.execute_cmd(f"/summon target ~{np.sin(angle) * away:.4f} ~ ~{np.cos(angle) * away:.4f}")
        self.first = self.last = self._angle(sim)
        return sim.observe()

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        angle = self._angle(sim)
        is_found = angle <= self.tolerance
        reward, self.last = (self.last - (0.0 if is_found else angle)) / self.first, angle
        return obs, reward, terminated or is_found, truncated, {**info, "is_success": is_found}

    def _angle(self, sim: StandInSim) -> float:
        [target] = sim.engine.entities
        return abs(angle_between(sim.engine.yaw, bearing(sim, target.x, target.z)))


class RecallTask(MinecraftCallback):
    """The sky of the first frame is red or blue; later two pillars rise, and looking at the one of that colour pays 1.

    Until they rise, actions have no effect, so nothing but a memory can hold the colour. Looking at either pillar ends
    the episode. Without memory one time in two is right. The red one is on the left, unless sides are random, which
    is much harder: then neither colour nor sides alone say anything.
    """

    tolerance = 6.0
    bearing_of_pillars = 20.0

    def __init__(self, delay: int = 3, has_random_sides: bool = False) -> None:
        self.delay, self.has_random_sides = delay, has_random_sides
        self.is_red_right = False
        self.cue = "red"
        self.age = 0

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        self.cue, self.age = ("red", "blue")[int(sim.np_random.integers(2))], 0
        self.is_red_right = self.has_random_sides and bool(sim.np_random.integers(2))
        sim.execute_cmd("/kill @e[type=!player]")
        obs, info = sim.observe()
        return {**obs, "image": self._tinted(obs["image"])}, info

    def before_step(self, sim: StandInSim, action: Action) -> Action:
        self.age += 1
        if self.age <= self.delay:
            return sim.agent_action_to_env_action(sim.noop_action())
        return action

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        engine = sim.engine
        if self.age == self.delay:
            for colour in _COLOURS:
                side = 1.0 if (colour == "red") == self.is_red_right else -1.0
                angle = np.radians(engine.yaw + side * self.bearing_of_pillars)
                sim.execute_cmd(f"/summon {colour} ~{np.sin(angle) * 6:.4f} ~ ~{np.cos(angle) * 6:.4f}")
            obs, info = sim.observe()
        found = [
            each.kind
            for each in engine.entities
            if abs(angle_between(engine.yaw, bearing(sim, each.x, each.z))) <= self.tolerance
        ]
        is_right = self.cue in found
        return obs, float(is_right), terminated or bool(found), truncated, {**info, "is_success": is_right}

    def before_render(self, sim: StandInSim, image: Array) -> Array:
        return self._tinted(image) if self.age == 0 else image

    def _tinted(self, image: Array) -> Array:
        tinted = image.copy()
        tinted[: len(image) // 2] = _COLOURS[self.cue]
        return tinted


HUNT_REWARDS = (
    {"event": "kill_entity", "identity": "hunt sheep", "objects": ["sheep"], "reward": 5.0, "max_reward_times": 30},
)
HUNT_MOBS = (
    {"name": "sheep", "number": 6, "range_x": (-8.0, 8.0), "range_z": (-8.0, 8.0)},
    {"name": "cow", "number": 2, "range_x": (-8.0, 8.0), "range_z": (-8.0, 8.0)},
)


def make_task(
    task: MinecraftCallback | Sequence[MinecraftCallback],
    *,
    size: int,
    max_steps: int,
    actions: str = "small",
    yaw_turns: Sequence[float] = YAW_TURNS,
    pitch_turns: Sequence[float] = (0.0,),
    faults: Mapping[str, Keyword] | None = None,
    empty_frames: int = 0,
    frames_per_second: float = 5.0,
    **adapted: Keyword,
) -> MinecraftEnv:
    """Makes the environment of a task's callbacks; `actions` is small, or MineStudio's 8641 x 121 by the name agent."""
    if actions not in ("small", "agent"):
        raise SettingsError(f"actions {actions!r} of a task in Minecraft; expected small or agent")
    small: Keywords = (
        {"buttons": _BUTTONS, "pitch_turns": pitch_turns, "yaw_turns": yaw_turns} if actions == "small" else {}
    )
    callbacks = [*(task if isinstance(task, Sequence) else [task]), JudgeResetCallback(max_steps)]
    make = partial(
        StandInSim,
        obs_size=(size, size),
        render_size=(320, 180),
        num_empty_frames=empty_frames,
        callbacks=callbacks,
        faults=faults,
    )
    return MinecraftEnv(make, frames_per_second=frames_per_second, **small, **adapted)


def look(size: int = 16, max_steps: int = 20, **options: Keyword) -> MinecraftEnv:
    """Turn to a post: dense rewards, learned in a minute."""
    callbacks = [MaskActionsCallback(forward=0, back=0, left=0, right=0), LookTask()]
    return make_task(callbacks, size=size, max_steps=max_steps, **options)


def hunt(size: int = 32, max_steps: int = 600, frames_per_second: float = 20.0, **options: Keyword) -> MinecraftEnv:
    """Kill six sheep among cows: 5 for each, in 600 steps."""
    callbacks = [SummonMobsCallback(HUNT_MOBS), RewardsCallback(HUNT_REWARDS)]
    pitch = {"pitch_turns": (-10.0, 0.0, 10.0)} if options.get("actions") != "agent" else {}
    paced = {"frames_per_second": frames_per_second, **pitch, **options}
    return make_task(callbacks, size=size, max_steps=max_steps, **paced)


def recall(
    size: int = 16, max_steps: int = 20, delay: int = 3, has_random_sides: bool = False, **options: Keyword
) -> MinecraftEnv:
    """Remember the colour of the first frame, and look at the pillar of that colour."""
    return make_task(RecallTask(delay, has_random_sides), size=size, max_steps=max_steps, **options)


for _name in ("look", "hunt", "recall"):
    gymnasium.register(f"Minecraft/{_name.title()}-v0", f"{__name__}:{_name}", order_enforce=False)
