"""Callbacks of MinecraftSim by MineStudio's names, for the stand-in: rewards, time limits, masks, tasks, resets.

Each hook receives what the hook before it returned, in the order of the list. Callbacks that MineStudio's users wrote
for `MinecraftSim` run unchanged as long as they use these hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from quintain.typing import Keyword

if TYPE_CHECKING:
    from quintain.envs.minecraft.stand_in import StandInSim
    from quintain.typing import Action, Array, Info, Observation

    Stepped: TypeAlias = tuple[Observation, float, bool, bool, Info]
    """What a step returns: observation, reward, terminated, truncated, info."""

RewardRule: TypeAlias = Mapping[str, Keyword]
"""event, identity, objects, reward and max_reward_times of one reward."""


class MinecraftCallback:
    """Hooks around the calls of a simulator; each does nothing by itself."""

    def before_reset(self, sim: StandInSim, reset_flag: bool) -> bool:
        """Votes on whether the world is made anew."""
        return reset_flag

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        return obs, info

    def before_step(self, sim: StandInSim, action: Action) -> Action:
        return action

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        return obs, reward, terminated, truncated, info

    def before_close(self, sim: StandInSim) -> None: ...

    def after_close(self, sim: StandInSim) -> None: ...

    def before_render(self, sim: StandInSim, image: Array) -> Array:
        return image

    def after_render(self, sim: StandInSim, image: Array) -> Array:
        return image


class RewardsCallback(MinecraftCallback):
    """Replaces the reward: a rule pays once in each step in which a counter of one of its objects rose."""

    def __init__(self, reward_cfg: Sequence[RewardRule]) -> None:
        self.rules = list(reward_cfg)
        self.counts = [0.0] * len(self.rules)
        self.paid = [0] * len(self.rules)

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        self.counts = [_counted(rule, info) for rule in self.rules]
        self.paid = [0] * len(self.rules)
        return obs, info

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        total = 0.0
        for place, rule in enumerate(self.rules):
            count = _counted(rule, info)
            if count > self.counts[place] and self.paid[place] < int(rule["max_reward_times"]):
                total += float(rule["reward"])
                self.paid[place] += 1
            self.counts[place] = count
        return obs, total, terminated, truncated, info


def _counted(rule: RewardRule, info: Info) -> float:
    counters = info.get(rule["event"], {})
    return float(sum(counters.get(name, 0) for name in rule["objects"]))


class JudgeResetCallback(MinecraftCallback):
    """Ends an episode at a time limit, and says that it terminated, as MineStudio's does."""

    def __init__(self, time_limit: int = 600) -> None:
        self.time_limit = time_limit
        self.time_step = 0

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        self.time_step = 0
        return obs, info

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        self.time_step += 1
        return obs, reward, terminated or self.time_step >= self.time_limit, truncated, info


class MaskActionsCallback(MinecraftCallback):
    """Sets entries of the engine's action to fixed values."""

    def __init__(self, **fixed: Keyword) -> None:
        self.fixed = fixed

    def before_step(self, sim: StandInSim, action: Action) -> Action:
        action.update(self.fixed)
        return action


class PrevActionCallback(MinecraftCallback):
    """Shows the last action of the engine as `env_prev_action`; the no-op after a reset."""

    def __init__(self) -> None:
        self.last: Action = {}

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        obs["env_prev_action"] = sim.agent_action_to_env_action(sim.noop_action())
        return obs, info

    def before_step(self, sim: StandInSim, action: Action) -> Action:
        self.last = dict(action)
        return action

    def after_step(
        self, sim: StandInSim, obs: Observation, reward: float, terminated: bool, truncated: bool, info: Info
    ) -> Stepped:
        obs["env_prev_action"] = self.last
        return obs, reward, terminated, truncated, info


class TaskCallback(MinecraftCallback):
    """Draws a task for each episode, and shows it as `task` in the first observation only, as MineStudio's does."""

    def __init__(self, task_cfg: Sequence[Mapping[str, Keyword]]) -> None:
        self.tasks = list(task_cfg)

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        obs["task"] = dict(self.tasks[int(sim.np_random.integers(len(self.tasks)))])
        return obs, info


class SummonMobsCallback(MinecraftCallback):
    """Summons animals around the player after each reset: name, number, range_x and range_z of each rule."""

    def __init__(self, mobs: Sequence[Mapping[str, Keyword]]) -> None:
        self.mobs = list(mobs)

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        for mob in self.mobs:
            for _ in range(int(mob["number"])):
                x, z = (float(sim.np_random.uniform(*mob[f"range_{axis}"])) for axis in "xz")
                sim.execute_cmd(f"/summon {mob['name']} ~{x:.3f} ~ ~{z:.3f}")
        return sim.observe()


class CommandsCallback(MinecraftCallback):
    """Runs commands after each reset."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = list(commands)

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        for command in self.commands:
            sim.execute_cmd(command)
        return sim.observe()


class FastResetCallback(MinecraftCallback):
    """After the first reset, clears the meadow and teleports the player, where a new world would take long."""

    def __init__(self, random_tp_range: float = 1000.0) -> None:
        self.random_tp_range = random_tp_range
        self.has_world = False

    def before_reset(self, sim: StandInSim, reset_flag: bool) -> bool:
        is_first, self.has_world = not self.has_world, True
        return reset_flag and is_first

    def after_reset(self, sim: StandInSim, obs: Observation, info: Info) -> tuple[Observation, Info]:
        x, z = sim.np_random.uniform(-self.random_tp_range, self.random_tp_range, 2)
        for command in ("/kill @e[type=!player]", f"/tp @p {x:.3f} ~ {z:.3f}"):
            sim.execute_cmd(command)
        return sim.observe()


def angle_between(a: float, b: float) -> float:
    """Returns the turn from one bearing to another, between -180 and 180 degrees.

    >>> angle_between(350.0, 10.0), angle_between(10.0, 350.0)
    (20.0, -20.0)
    """
    return float((b - a + 180.0) % 360.0 - 180.0)


def bearing(sim: StandInSim, x: float, z: float) -> float:
    """Returns the yaw at which the player looks at a place."""
    return float(np.degrees(np.arctan2(x - sim.engine.x, z - sim.engine.z)))
