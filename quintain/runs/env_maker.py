"""Makes the lanes of a run from settings or from an object, for training, evaluation and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.envs.base import Env
from quintain.envs.gym.factories import with_pictures
from quintain.envs.gym.make import env_from_object, gym_env
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.settings import GymSettings
from quintain.errors import SettingsError
from quintain.settings.agent_rules import has_agents
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.placements.camera import FilmingThread
    from quintain.trainers.settings import RecordVideoSettings


class EnvMaker(Protocol):
    """Makes an environment with so many lanes; the first has the given index among the lanes of all ranks."""

    def __call__(self, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env: ...


def env_maker(
    run_file: RunFile, slot: Any = None, hosting: Hosting | None = None, *, is_training: bool = False
) -> EnvMaker:
    """Returns a factory of the run's environment with any number of lanes, for training and for evaluation.

    Only training groups lanes with equal initial states: equal episodes in an evaluation would be redundant. Some
    wrappers are of training only, too.
    """
    settings = run_file.experiment.env
    if has_agents(run_file.experiment):
        raise SettingsError(
            "an environment of agents has no lanes that could be measured or filmed yet",
            code="E0226",
        )
    if not is_training and "group_size" in type(settings).model_fields:
        settings = settings.model_copy(update={"group_size": 1})
    if not is_training and isinstance(settings, GymSettings):
        settings = settings.for_evaluation()
    make = _maker(settings, slot, hosting or Hosting.from_settings(run_file.run.env_workers))
    knows_lanes = "first_lane" in inspect.signature(make).parameters

    def make_env(num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
        if isinstance(slot, Env):
            env: Env = slot
        elif first_lane and not knows_lanes:
            # It cannot give a lane the seeds that it would have on one rank; at least no two ranks share theirs.
            env = make(num_lanes, rng.child(f"lanes_from_{first_lane}"))
        else:
            env = make(num_lanes, rng, **({"first_lane": first_lane} if first_lane else {}))
        if first_lane != env.first_lane:
            env.first_lane = first_lane
        return env

    return make_env


def make_camera(run_file: RunFile, slot: Any, settings: RecordVideoSettings, rng: Rng) -> FilmingThread | None:
    """Makes the thread that films episodes; None if there is only one environment, which trains.

    Lanes that are filmed are in a process of their own, where they can be, so that they draw from no generator of this
    one and may be stepped beside training.
    """
    from quintain.placements.camera import FilmingThread

    env_settings = run_file.experiment.env
    if isinstance(slot, Env | gymnasium.Env | gymnasium.vector.VectorEnv) or has_agents(run_file.experiment):
        return None
    if not isinstance(env_settings, GymSettings) or env_settings.vectorization == "native":
        return FilmingThread(partial(env_maker(run_file, slot, Hosting()), 1), settings, rng)
    alone = run_file.run.env_workers.model_copy(update={"num_workers": 1})

    def make(rng: Rng) -> Env:
        filmed = env_settings.for_evaluation().model_copy(update={"group_size": 1})
        filmed = with_pictures(filmed) if slot is None else filmed
        return _maker(filmed, slot, Hosting.from_settings(alone))(1, rng)

    return FilmingThread(make, settings, rng)


def _maker(settings: Any, slot: Any, hosting: Hosting) -> Callable[..., Env]:
    if slot is not None and not isinstance(slot, Env):
        return partial(_env_from_slot, settings, slot, hosting)
    if slot is None and isinstance(settings, GymSettings):
        return partial(gym_env, settings, hosting=hosting)
    hosting.refuse_workers(f"an environment of type {settings.type} steps all its lanes itself")
    return partial(registry.get("env", settings.type).load(), settings)


def _env_from_slot(settings: Any, slot: Any, hosting: Hosting, num_lanes: int, rng: Rng, first_lane: int = 0) -> Env:
    return env_from_object(
        slot,
        num_lanes,
        rng,
        settings=settings,
        first_lane=first_lane,
        hosting=hosting,
    )
