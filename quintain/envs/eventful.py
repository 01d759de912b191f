"""Adds events to any environment; an `EmbodiedEnv` calls them inside its own step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from quintain.core import registry
from quintain.core.rng import Rng
from quintain.envs.base import Env, StepResult
from quintain.envs.embodied import EmbodiedEnv
from quintain.envs.events import INTERVAL, RESET, EnvEventManager, EventCfg
from quintain.envs.parameters import Parameters
from quintain.envs.settings import EnvEventSettings

if TYPE_CHECKING:
    from quintain.settings.base import PartSettings
    from quintain.typing import Action, Array, Keywords, LaneIds, LaneMask, Mirror, Observation, State, Values


class EventfulEnv(Env):
    """Forwards all calls and fires the events after each step and reset."""

    def __init__(self, env: Env, cfg: Mapping[str, EventCfg | Keywords], rng: Rng) -> None:
        self.env = env
        self.spec = env.spec
        self.num_lanes = env.num_lanes
        self.group_size = env.group_size
        self.first_lane = env.first_lane
        self.notes = env.notes
        self.events = EnvEventManager(cfg, env, rng)

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        obs = self.env.reset(lanes)
        self.events.apply(RESET, None if lanes is None else np.flatnonzero(np.asarray(lanes)))
        return obs

    def step(self, action: Action) -> StepResult:
        result = self.env.step(action)
        self.events.apply(INTERVAL)
        begun = _begun(result)
        if begun.any():
            self.events.apply(RESET, np.flatnonzero(begun))
        return result

    def begin_anew(self, played: Sequence[State]) -> Observation:
        obs = self.env.begin_anew([state["env"] for state in played])
        self.events.apply(RESET)
        return obs

    def be_watched(self) -> None:
        self.env.be_watched()

    @property
    def pulse(self) -> int:
        return self.env.pulse

    def action_mask(self) -> Values | None:
        return self.env.action_mask()

    @property
    def mirror(self) -> Mirror | None:
        return self.env.mirror

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        self.env.set_parameters(values, lanes)

    def require_parameters(self, names: Sequence[str]) -> None:
        self.env.require_parameters(names)

    @property
    def can_reset_lanes(self) -> bool:
        return self.env.can_reset_lanes

    @property
    def renders_ends(self) -> bool:
        return self.env.renders_ends

    def render(self) -> Array | None:
        return self.env.render()

    @property
    def frames_per_second(self) -> float:
        return self.env.frames_per_second

    def close(self) -> None:
        self.events.close()
        self.env.close()

    @property
    def exactness(self) -> str:
        return self.env.exactness

    def state_dict(self) -> State:
        return {"env": self.env.state_dict(), "events": self.events.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.env.load_state_dict(state["env"])
        self.events.load_state_dict(state["events"])


def with_events(env: Env, cfg: Mapping[str, EventCfg | Keywords], rng: Rng) -> Env:
    """Adds events to an environment; without events returns it unchanged."""
    if not cfg:
        return env
    if isinstance(env, EmbodiedEnv):
        env.events = EnvEventManager(cfg, env, rng)
        return env
    return EventfulEnv(env, cfg, rng)


def events_of(env: Env) -> EnvEventManager | None:
    """Returns the event manager of an environment that has one."""
    return env.events if isinstance(env, EventfulEnv | EmbodiedEnv) else None


def cfg_of(settings: Sequence[PartSettings]) -> dict[str, EventCfg]:
    """Converts the events of a run file to `EventCfg`s, by type."""
    cfg: dict[str, EventCfg] = {}
    for each in settings:
        assert isinstance(each, EnvEventSettings)
        name = each.type if each.type not in cfg else f"{each.type}-{len(cfg) + 1}"
        function = registry.get("env_event", each.type).load()
        cfg[name] = EventCfg(
            function, each.mode, each.interval_step, each.count_from, each.is_global, each.parameters()
        )
    return cfg


def _begun(result: StepResult) -> Array:
    """Returns which lanes are at the first observation of an episode after a step."""
    if result.valid is not None:
        begun = ~_array(result.valid)
    else:
        begun = np.asarray(_array(result.terminated) | _array(result.truncated))
    # An environment that broke was made anew: it knows nothing of what an event once did to it.
    return begun if result.aborted is None else begun | _array(result.aborted)


def _array(values: Values) -> Array:
    return values if isinstance(values, np.ndarray) else values.cpu().numpy()
