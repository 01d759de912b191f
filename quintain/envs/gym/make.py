"""All ways to name a Gymnasium environment: an id, `module:Name`, a class, a factory, an instance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gymnasium

from quintain.envs.base import Env
from quintain.envs.gym.factories import dressed, factory_of
from quintain.envs.gym.lanes import LaneEnv
from quintain.envs.gym.packages import is_atari, missing_package, names_registered_id, registered_id, silence_banner
from quintain.envs.gym.vector import VectorEnv
from quintain.envs.gym.wrapping import wrapped
from quintain.envs.hosts.hosting import Hosting
from quintain.envs.hosts.recipes import Recipe
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.settings import GymSettings
from quintain.errors import EnvError, SettingsError

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.envs.gym.protocols import GymEnv, GymVectorEnv
    from quintain.envs.hosts.lane_host import EnvFactory
    from quintain.typing import Action, Array, Keywords, Observation


def gym_env(
    settings: GymSettings, num_lanes: int, rng: Rng, first_lane: int = 0, hosting: Hosting | None = None
) -> Env:
    """Makes the environment of `{type: gym, id: ...}`, or its lanes from `first_lane` on."""
    hosting = hosting or Hosting()
    encode_text = settings.text_observations == "encode"
    if settings.vectorization == "native":
        hosting.refuse_workers(f"vectorization: native of {settings.id} steps all its lanes itself")
        vector = _make_vector(settings, num_lanes)
        return VectorEnv(
            settings.id,
            vector,
            rng,
            encode_text=encode_text,
            first_lane=first_lane,
            use_masks=settings.use_action_masks,
            metric_names=settings.episode_metrics,
        )
    factory, options = factory_of(settings), lane_options(settings, first_lane, hosting)
    env: WorkerEnv | LaneEnv
    if hosting.team is not None:
        env = WorkerEnv(settings.id, Recipe.from_settings(settings), num_lanes, rng, hosting.team, **options)
    else:
        env = LaneEnv(settings.id, [factory] * num_lanes, rng, **options)
    env.notes += preset_advice(settings)
    return env


def preset_advice(settings: GymSettings) -> tuple[str, ...]:
    """Names the preset for a game that is played from raw screens."""
    is_game = names_registered_id(settings.id) and is_atari(registered_id(settings.id))
    if not is_game or settings.layers or settings.kwargs.get("obs_type", "rgb") != "rgb":
        return ()
    return (
        f"note: {settings.id} gives whole screens in colour, so that updates and stops take long. preset=atari gives "
        "84x84 grey pixels, as agents usually see them",
    )


def env_from_object(
    slot: EnvFactory | GymEnv | gymnasium.vector.VectorEnv[Observation, Action, Array],
    num_lanes: int,
    rng: Rng,
    *,
    settings: GymSettings | None = None,
    first_lane: int = 0,
    hosting: Hosting | None = None,
) -> Env:
    """Makes an environment from a Python object: a class, a factory, or an instance."""
    hosting = hosting or Hosting()
    name = getattr(slot, "__name__", type(slot).__name__)
    settings = settings or GymSettings(id=name)
    encode_text, options = settings.text_observations == "encode", lane_options(settings, first_lane, hosting)
    if isinstance(slot, gymnasium.vector.VectorEnv):
        hosting.refuse_workers("a vector environment steps all its lanes itself")
        if settings.layers:
            raise SettingsError(
                "experiment.env.wrappers are around the environment of each lane, and this is a vector environment. "
                "Wrap it before you pass it, or pass its id, class or factory",
                code="E0232",
            )
        return VectorEnv(
            name, slot, rng, encode_text=encode_text, first_lane=first_lane, metric_names=settings.episode_metrics
        )
    if isinstance(slot, gymnasium.Env):
        hosting.refuse_workers("an environment that exists already lives in this process; pass its class")
        return LaneEnv(name, [lambda: wrapped(settings, slot)], rng, **{**options, "group_size": 1, "faults": None})
    if callable(slot):
        if hosting.team is not None:
            return WorkerEnv(name, Recipe.from_object(slot, settings), num_lanes, rng, hosting.team, **options)
        return LaneEnv(name, [dressed(settings, name, slot)] * num_lanes, rng, **options)
    raise SettingsError(
        f"env slot got a {type(slot).__name__}; pass a Gymnasium id, environment, vector environment, class or factory"
    )


def lane_options(settings: GymSettings, first_lane: int = 0, hosting: Hosting | None = None) -> Keywords:
    """Returns the keyword arguments of lanes, here or in workers."""
    return {
        "group_size": settings.group_size,
        "encode_text": settings.text_observations == "encode",
        "first_lane": first_lane,
        "use_masks": settings.use_action_masks,
        "info_metrics": settings.episode_metrics,
        "faults": None if hosting is None else hosting.faults,
    }


def _make_vector(settings: GymSettings, num_lanes: int) -> GymVectorEnv:
    env_id = registered_id(settings.id) if names_registered_id(settings.id) else ""
    if not env_id or gymnasium.spec(env_id).vector_entry_point is None:
        raise SettingsError(
            f"env {settings.id!r} has no vector entry point of its own, so vectorization: native cannot be used. "
            f"Set vectorization: lanes"
        )
    limit = {} if settings.max_episode_steps is None else {"max_episode_steps": settings.max_episode_steps}
    options: Keywords = {**limit, **settings.kwargs}
    try:
        silence_banner(env_id)
        return gymnasium.make_vec(env_id, num_lanes, vectorization_mode="vector_entry_point", **options)
    except Exception as error:
        if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):
            raise missing_package(env_id, error) or error from error
        reason = f"{type(error).__name__}: {error}"
        raise EnvError(f"env {settings.id!r} cannot be created: {reason}", code="E0505") from error
