"""Packages that register environments with Gymnasium: which module to import for an id, and how to install it.

An id is looked up by three rules. `module:Name` with a name of Python is a class or factory of that module.
`module:Some-Id-v0` or `module:space/Id-v0`, which no name of Python can be, imports the module and makes the id that it
registers, as `gymnasium.make` does. An id alone is one of Gymnasium's, or of a well-known package that is installed.
"""

from __future__ import annotations

import importlib
import re
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import NamedTuple

import gymnasium

from quintain.core.extras import install_command, pip_command
from quintain.core.registry import import_module_of
from quintain.errors import SettingsError


class Package(NamedTuple):
    """A package, the ids it registers, and how to get it."""

    ids: str
    """Pattern of its ids."""
    distribution: str
    module: str
    """The module whose import registers the ids; empty for a package that does not speak Gymnasium's interface."""
    extra: str = ""
    """The extra of quintain that installs it, where there is one."""
    note: str = ""

    @property
    def command(self) -> str:
        return install_command(self.extra) if self.extra else pip_command(self.distribution)


_OLD = "it speaks the interface of the old Gym, so wrap it with shimmy and name your factory as module:Name"
_GAMES = (
    "Asterix|Asteroids|BeamRider|Boxing|Breakout|Enduro|Freeway|Frostbite|MontezumaRevenge|MsPacman|Pitfall|Pong|Qbert|"
    "RoadRunner|Seaquest|SpaceInvaders"
)
"""Atari games that are often named without `ALE/`."""
KNOWN = (
    Package(
        rf"ALE/.*|.*(NoFrameskip|Deterministic)-v\d+|.*-ram(-.*)?-v\d+|({_GAMES})-v\d+", "ale-py", "ale_py", "atari"
    ),
    Package(r"(MiniGrid|BabyAI)-.*", "minigrid", "minigrid", "minigrid"),
    Package(r"Minecraft/.*", "quintain", "quintain.envs.minecraft.tasks"),
    Package(r"MiniWorld-.*", "miniworld", "miniworld"),
    Package(r"Panda(Reach|Push|Slide|PickAndPlace|Stack|Flip).*", "panda-gym", "panda_gym"),
    Package(
        r"(highway|merge|roundabout|parking|intersection|racetrack|exit|lane-keeping|two-way|u-turn)-.*",
        "highway-env",
        "highway_env",
    ),
    Package(
        r"(Fetch|Hand(Reach|Manipulate)|PointMaze|AntMaze|Adroit|FrankaKitchen).*",
        "gymnasium-robotics",
        "gymnasium_robotics",
    ),
    Package(r"Meta-World/.*", "metaworld", "metaworld"),
    Package(r"dm_control/.*", "shimmy[dm-control]", "shimmy"),
    Package(r"FlappyBird-.*", "flappy-bird-gymnasium", "flappy_bird_gymnasium"),
    Package(r"PyFlyt/.*", "PyFlyt", "PyFlyt.gym_envs"),
    Package(r"Vizdoom.*", "vizdoom", "vizdoom.gymnasium_wrapper"),
    Package(r".*BulletEnv-v\d+", "pybullet-envs-gymnasium", "pybullet_envs_gymnasium"),
    Package(r"NetHack.*", "nle", "nle"),
    Package(r"MiniHack-.*", "minihack", "minihack"),
    Package(r"popgym-.*", "popgym", "popgym"),
    Package(r"myo[A-Z].*", "myosuite", "myosuite"),
    Package(r"miniwob/.*", "miniwob", "miniwob"),
    Package(r"(stocks|forex)-v\d+", "gym-anytrading", "gym_anytrading"),
    Package(r"gym_pusht/.*", "gym-pusht", "gym_pusht"),
    Package(r"gym_aloha/.*", "gym-aloha", "gym_aloha"),
    Package(r"procgen-.*", "procgen", "", note=_OLD),
    Package(r"Crafter(NoReward|Reward)-.*", "crafter", "", note=_OLD),
    Package(r"SuperMarioBros.*", "gym-super-mario-bros", "", note=_OLD),
    Package(r"MineRL.*", "minerl", "", note=_OLD),
)
"""Well-known packages, in the order in which their patterns are tried."""

_EXTRAS_OF_GYMNASIUM = {"box2d": "box2d", "mujoco": "mujoco"}
"""Extras of quintain for environments of Gymnasium itself, by the package of their entry point."""


def names_registered_id(env_id: str) -> bool:
    """Whether an id names a registered environment; else it is `module:Name` of a class or factory.

    >>> [names_registered_id(each) for each in ("CartPole-v1", "mine:Walk-v0", "mine:space/Walk", "mine:Walk")]
    [True, True, True, False]
    """
    name = env_id.partition(":")[2]
    return not name or not all(step.isidentifier() for step in name.split("."))


def registered_id(env_id: str) -> str:
    """Imports the package of an id if necessary, and returns the id; refuses one that is not registered."""
    if ":" in env_id:
        module, _, name = env_id.partition(":")
        root = module.partition(".")[0]
        package = next((each for each in KNOWN if each.module.partition(".")[0] == root), None)
        if package is not None and find_spec(root) is None:
            raise _not_installed(package, env_id)
        import_module_of("env", env_id)
        if name not in gymnasium.registry:
            raise _unknown(env_id, f'importing {module} did not register "{name}"', name)
        return name
    if env_id not in gymnasium.registry and (package := _package_of(env_id)) is not None:
        _import(package, env_id)
    if env_id not in gymnasium.registry:
        raise _unknown(env_id, "it is not registered with Gymnasium", env_id)
    return env_id


def is_atari(env_id: str) -> bool:
    return str(gymnasium.spec(env_id).entry_point).startswith("ale_py")


def silence_banner(env_id: str) -> None:
    """Turns off the lines that the Atari emulator prints for every environment, into the middle of other output."""
    if is_atari(env_id):
        ale_py = importlib.import_module("ale_py")
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


def missing_package(env_id: str, error: Exception) -> SettingsError | None:
    """Returns the error for an environment of Gymnasium that needs another package, with the command to install it."""
    entry_point = str(gymnasium.spec(env_id).entry_point)
    extra = next((e for part, e in _EXTRAS_OF_GYMNASIUM.items() if f"gymnasium.envs.{part}" in entry_point), None)
    if extra is None:
        return None
    return SettingsError(
        f"env {env_id!r} needs packages that are not installed ({str(error).splitlines()[0]}). Install them with: "
        f"{install_command(extra)}",
        code="E0242",
    )


def _package_of(env_id: str) -> Package | None:
    return next((package for package in KNOWN if re.fullmatch(package.ids, env_id)), None)


def _import(package: Package, env_id: str) -> None:
    """Imports a well-known package, if that is what is installed under its name."""
    try:
        distribution(package.distribution.partition("[")[0])
    except PackageNotFoundError:
        raise _not_installed(package, env_id) from None
    if package.module:
        import_module_of("env", package.module)
    elif package.note:
        raise SettingsError(f'unknown env "{env_id}" of {package.distribution}: {package.note}', code="E0204")


def _not_installed(package: Package, env_id: str) -> SettingsError:
    return SettingsError(
        f'unknown env "{env_id}": the package {package.distribution} has it, and is not installed. Install it '
        f"with: {package.command}{f'; {package.note}' if package.note else ''}",
        code="E0242",
    )


def _unknown(env_id: str, why: str, name: str) -> SettingsError:
    by_lower = {re.sub(r"\W", "", known).lower(): known for known in gymnasium.registry}
    near = [known for known in gymnasium.registry if known.partition("/")[2] == name]
    near += [by_lower[each] for each in get_close_matches(re.sub(r"\W", "", name).lower(), by_lower, n=1, cutoff=0.5)]
    hint = f'did you mean "{near[0]}"?' if near else "is the package that registers it installed?"
    return SettingsError(
        f'unknown env "{env_id}": {why}; {hint} An id of a package is module:Id-v0, your own class module:Name',
        code="E0204",
    )
