"""An offline stand-in for MineStudio's `MinecraftSim`: its interface, quirks and faults, over a small meadow in numpy.

It keeps the quirks on purpose, so that what works here works with the real simulator: `reset` takes no seed, `step`
empties the caller's action and reports every end as both terminated and truncated, a broken connection returns noise.
Use it through `MinecraftEnv`, which makes an honest Gymnasium environment of either.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from quintain.envs.minecraft import actions
from quintain.envs.minecraft.callbacks import angle_between
from quintain.envs.minecraft.rendering import EYE_HEIGHT, LOOKS, Entity, add_crosshair, draw
from quintain.errors import SettingsError
from quintain.typing import Action, Keyword, Observation

if TYPE_CHECKING:
    from quintain.envs.minecraft.callbacks import MinecraftCallback
    from quintain.typing import Array, Info

_COUNTERS = ("kill_entity", "mine_block", "craft_item", "pickup", "break_item", "use_item", "damage_dealt", "custom")
_REACH = 3.5
_DAMAGE, _HURT_TICKS = 4.0, 4
_WALK, _SPRINT, _SNEAK = 0.215, 0.28, 0.065
"""Blocks per tick."""


@dataclass(frozen=True)
class ScriptedFaults:
    """Scripted faults; steps are counted from the creation of the simulator, over all episodes."""

    raise_at: int | None = None
    """The step that raises."""
    error_at: int | None = None
    """The step whose connection breaks: noise, an end, and `info["error"]`."""
    hang_at: int | None = None
    """The step that never returns."""
    exit_at: int | None = None
    """The step in which the process dies."""
    slow_reset_seconds: float = 0.0
    slow_step_seconds: float = 0.0
    grow_bytes: int = 0
    """Bytes that each step leaks."""
    pareto_shape: float | None = None
    """Makes slow resets heavy-tailed: their times are multiplied by draws of this Pareto distribution."""

    @classmethod
    def of(cls, given: ScriptedFaults | Mapping[str, Keyword] | None) -> ScriptedFaults:
        """Reads faults from settings; refuses unknown ones."""
        if isinstance(given, ScriptedFaults):
            return given
        known = [field.name for field in fields(cls)]
        if unknown := sorted(set(given or {}) - set(known)):
            raise SettingsError(f"unknown fault {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**(given or {}))


class Meadow:
    """The meadow: a player, entities, counters, and the generator of everything random."""

    def __init__(self, seed: int) -> None:
        self.seed(seed)
        self.new_world()

    def seed(self, seed: int) -> None:
        """Seeds the next world and everything that callbacks draw."""
        self.np_random = np.random.default_rng(seed)

    def new_world(self) -> None:
        self.x, self.z = 0.5, 0.5
        self.yaw, self.pitch, self.tick = 0.0, 0.0, 0
        self.health = 20.0
        self.is_gui_open = False
        self.entities: list[Entity] = []
        self.counters: dict[str, dict[str, float]] = {name: {} for name in _COUNTERS}

    def step(self, action: Mapping[str, Action]) -> None:
        """Moves the player by one tick, then lets a pressed attack hit the entity in the middle of the view."""
        self.tick += 1
        pitch, yaw = (float(turn) for turn in action["camera"])
        self.yaw = angle_between(0.0, self.yaw + yaw)
        self.pitch = min(max(self.pitch + pitch, -90.0), 90.0)
        if action["inventory"]:
            self.is_gui_open = not self.is_gui_open
        forth, right = action["forward"] - action["back"], action["right"] - action["left"]
        if (forth or right) and not self.is_gui_open:
            pace = _SNEAK if action["sneak"] else _SPRINT if action["sprint"] else _WALK
            pace /= math.hypot(forth, right)
            turn = math.radians(self.yaw)
            self.x += pace * (math.sin(turn) * forth + math.cos(turn) * right)
            self.z += pace * (math.cos(turn) * forth - math.sin(turn) * right)
        if action["attack"]:
            self._attack()

    def _attack(self) -> None:
        reached = [(self.distance(each), each) for each in self.entities if self.is_aimed_at(each)]
        if not reached or (nearest := min(reached, key=lambda found: found[0]))[0] > _REACH:
            return
        entity = nearest[1]
        if self.tick < entity.hurt_until:
            return
        entity.health -= _DAMAGE
        entity.hurt_until = self.tick + _HURT_TICKS
        dealt = self.counters["damage_dealt"]
        dealt[entity.kind] = dealt.get(entity.kind, 0.0) + _DAMAGE
        if entity.health <= 0.0:
            self.entities.remove(entity)
            killed = self.counters["kill_entity"]
            killed[entity.kind] = killed.get(entity.kind, 0.0) + 1.0

    def distance(self, entity: Entity) -> float:
        return math.hypot(entity.x - self.x, entity.z - self.z)

    def is_aimed_at(self, entity: Entity) -> bool:
        """Whether the middle of the view is on an entity."""
        dx, dz = entity.x - self.x, entity.z - self.z
        turn, away = math.radians(self.yaw), max(math.hypot(dx, dz), 0.1)
        ahead, aside = dx * math.sin(turn) + dz * math.cos(turn), dx * math.cos(turn) - dz * math.sin(turn)
        height = EYE_HEIGHT - away * math.tan(math.radians(min(max(self.pitch, -89.0), 89.0)))
        return ahead > 0.0 and abs(aside) <= entity.look.width / 2 and 0.0 <= height <= entity.look.height

    def execute(self, command: str) -> None:
        """Carries out /summon, /tp and /kill; others have no effect in a meadow."""
        words = command.removeprefix("/").split()
        if words[:1] == ["summon"] and words[1].removeprefix("minecraft:") in LOOKS:
            x, z = (self._coordinate(word, own) for word, own in ((words[2], self.x), (words[4], self.z)))
            self.entities.append(Entity(words[1].removeprefix("minecraft:"), x, z))
        elif words[:1] == ["tp"]:
            self.x, self.z = self._coordinate(words[-3], self.x), self._coordinate(words[-1], self.z)
        elif words[:1] == ["kill"]:
            self.entities.clear()

    @staticmethod
    def _coordinate(word: str, own: float) -> float:
        return own + float(word[1:] or 0) if word.startswith("~") else float(word)


class StandInSim(gymnasium.Env[Observation, Action]):
    """Has MinecraftSim's constructor, calls, spaces, info and callbacks; draws a meadow."""

    def __init__(
        self,
        action_type: str = "agent",
        obs_size: tuple[int, int] = (224, 224),
        render_size: tuple[int, int] = (640, 360),
        seed: int = 0,
        inventory: Mapping[str, Keyword] | None = None,
        preferred_spawn_biome: str | None = None,
        num_empty_frames: int = 20,
        *,
        callbacks: Sequence[MinecraftCallback] = (),
        camera_config: object = None,
        faults: ScriptedFaults | Mapping[str, Keyword] | None = None,
    ) -> None:
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}
        self.action_type, self.obs_size, self.render_size = action_type, obs_size, render_size
        self.num_empty_frames = num_empty_frames
        self.callbacks = list(callbacks)
        self.inventory = dict(inventory or {})
        self.faults = ScriptedFaults.of(faults)
        self.engine = Meadow(seed)
        self.commands: list[str] = []
        """The commands that callbacks ran since the last reset."""
        self.num_steps = 0
        self.leak: list[bytes] = []
        self.has_world = False
        # The quirk of the original: sizes are (width, height) for the image, and (height, width) in this space.
        self.observation_space = Dict({"image": Box(0, 255, (*obs_size, 3), np.uint8)})
        if action_type == "agent":
            self.action_space = Dict(
                {"buttons": MultiDiscrete([actions.NUM_BUTTONS]), "camera": MultiDiscrete([actions.NUM_CAMERA])}
            )
        else:
            self.action_space = Dict(
                {
                    **{name: Discrete(2) for name in actions.ENV_BUTTONS},
                    "camera": Box(-180.0, 180.0, (2,), np.float32),
                }
            )

    @property
    def env(self) -> Meadow:
        """The engine by the name that it has in MinecraftSim."""
        return self.engine

    @property
    def np_random(self) -> np.random.Generator:
        return self.engine.np_random

    @np_random.setter
    def np_random(self, value: np.random.Generator) -> None:
        self.engine.np_random = value

    def reset(self) -> tuple[Observation, Info]:  # type: ignore[override]  # the original takes no seed
        if seconds := self.faults.slow_reset_seconds:
            shape = self.faults.pareto_shape
            time.sleep(seconds * (1.0 if shape is None else 1.0 + float(self.np_random.pareto(shape))))
        self.commands.clear()
        is_hard = True
        for callback in self.callbacks:
            is_hard = callback.before_reset(self, is_hard)
        if is_hard or not self.has_world:
            self.engine.new_world()
            self.has_world = True
        noop = self.agent_action_to_env_action(self.noop_action())
        for _ in range(self.num_empty_frames):
            self.engine.step(noop)
        obs, info = self.observe()
        for callback in self.callbacks:
            obs, info = callback.after_reset(self, obs, info)
        return obs, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        if self.action_type == "agent":
            # As the original does, from the caller's own dict.
            action.update(self.agent_action_to_env_action({k: action.pop(k) for k in ("buttons", "camera")}))
        for callback in self.callbacks:
            action = callback.before_step(self, action)
        is_broken = self._break()
        self.engine.step(action)
        obs, info = self.observe()
        done = self.engine.health <= 0.0
        if is_broken:
            obs = {"image": np.random.default_rng(self.num_steps).integers(0, 256, obs["image"].shape, np.uint8)}
            info, done = {"error": "timed out while receiving"}, True
        reward, terminated, truncated = 0.0, done, done
        for callback in self.callbacks:
            obs, reward, terminated, truncated, info = callback.after_step(
                self, obs, reward, terminated, truncated, info
            )
        return obs, reward, terminated, truncated, info

    def _break(self) -> bool:
        """Carries out the scripted faults of this step; returns whether the connection broke."""
        self.num_steps += 1
        faults, step = self.faults, self.num_steps
        if faults.slow_step_seconds:
            time.sleep(faults.slow_step_seconds)
        if faults.grow_bytes:
            self.leak.append(bytes(faults.grow_bytes))
        if step == faults.raise_at:
            raise ConnectionResetError("the engine closed the connection")
        if step == faults.exit_at:
            os._exit(1)
        while step == faults.hang_at:
            time.sleep(1.0)
        return step == faults.error_at

    def observe(self) -> tuple[Observation, Info]:
        """Returns what the player sees now, and the counters."""
        engine = self.engine
        image = draw(*self.obs_size, (engine.x, engine.z), engine.yaw, engine.pitch, engine.entities)
        place = {"x": engine.x, "y": 4.0, "z": engine.z, "pitch": engine.pitch, "yaw": engine.yaw}
        info: Info = {
            **{name: dict(counts) for name, counts in engine.counters.items()},
            "inventory": self.inventory,
            "player_pos": place,
            "health": engine.health,
            "food_level": 20.0,
            "is_gui_open": engine.is_gui_open,
            "isGuiOpen": engine.is_gui_open,
            "pov": image,
        }
        return {"image": image}, info

    def render(self) -> Array:
        engine = self.engine
        image = draw(*self.render_size, (engine.x, engine.z), engine.yaw, engine.pitch, engine.entities)
        for callback in self.callbacks:
            image = callback.before_render(self, image)
        add_crosshair(image)
        for callback in self.callbacks:
            image = callback.after_render(self, image)
        return image

    def execute_cmd(self, command: str) -> None:
        """Runs a command of the game; all of them are kept in `commands`."""
        self.commands.append(command)
        self.engine.execute(command)

    def noop_action(self) -> dict[str, Array]:
        return {"buttons": np.array([0]), "camera": np.array([actions.CENTER])}

    def agent_action_to_env_action(self, action: Mapping[str, Action]) -> dict[str, Action]:
        buttons, camera = (int(np.asarray(action[name]).reshape(-1)[0]) for name in ("buttons", "camera"))
        return actions.to_env_action(buttons, camera)

    def env_action_to_agent_action(self, action: Mapping[str, Action]) -> dict[str, Array]:
        return actions.to_agent_action(action)

    def close(self) -> None:
        for callback in self.callbacks:
            callback.before_close(self)
        for callback in self.callbacks:
            callback.after_close(self)
