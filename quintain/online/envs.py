"""Makes the environments of an `env_generator`: simulators get the adapter, others are watched for lost connections."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING

import gymnasium

from quintain.core import registry
from quintain.envs.minecraft.adapter import MinecraftEnv
from quintain.envs.minecraft.restarts import RestartClock
from quintain.errors import EnvError, SettingsError
from quintain.typing import Action, Observation

if TYPE_CHECKING:
    from quintain.envs.gym.protocols import GymEnv
    from quintain.typing import Info, Keyword


def online_env(
    generator: str | Callable[[], GymEnv], restart_interval: float | None = None, frames_per_second: float = 20.0
) -> gymnasium.Env[Observation, Action]:
    """Makes one environment by a generator, or by module:Name of one.

    It is made again between two episodes, `restart_interval` seconds after it was made; an episode that goes on for as
    long again is truncated.
    """
    made_by = registry.import_part("env", generator) if isinstance(generator, str) else generator
    first = [made_by()]
    if missing := [name for name in ("reset", "step") if not hasattr(first[0], name)]:
        raise SettingsError(
            f"env_generator made a {type(first[0]).__name__} without {' and '.join(missing)}; expected an environment",
            code="E0264",
        )

    def make() -> GymEnv:
        return first.pop() if first else made_by()

    if is_simulator(first[0]):
        return MinecraftEnv(make, restart_interval=restart_interval, frames_per_second=frames_per_second)
    return WatchedEnv(make, restart_interval)


def is_simulator(env: GymEnv) -> bool:
    """Whether it has the interface of a MinecraftSim, whose `reset` takes no seed."""
    takes = inspect.signature(env.reset).parameters
    return hasattr(env, "noop_action") and hasattr(env, "callbacks") and "seed" not in takes


class WatchedEnv(gymnasium.Wrapper[Observation, Action, Observation, Action]):
    """Raises where `info["error"]` says that a step is worth nothing; makes the environment again when it is due."""

    def __init__(self, make: Callable[[], GymEnv], restart_interval: float | None = None) -> None:
        super().__init__(make())  # type: ignore[arg-type]  # environments need not derive from gymnasium's
        self.make, self.restarts = make, RestartClock(restart_interval)

    def reset(self, **options: Keyword) -> tuple[Observation, Info]:
        if self.restarts.is_due():
            self.env.close()
            self.env = self.make()  # type: ignore[assignment]  # environments need not derive from gymnasium's
            self.restarts.begin()
        obs, info = self.env.reset(**options)
        self._refuse(info)
        return obs, info

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, Info]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._refuse(info)
        return obs, float(reward), terminated, truncated or (not terminated and self.restarts.is_due(2)), info

    def _refuse(self, info: Info) -> None:
        if info.get("error"):
            raise EnvError(
                f"the environment reported an error ({str(info['error'])[:200]}); its step is discarded, and the "
                f"episode truncated at its last good observation",
                code="E0526",
            )
