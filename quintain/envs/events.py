"""Events inside an environment's step: functions of the environment and of lane ids.

Order in a step: the simulation advances, `interval` events, observations, rewards and ends, the step is recorded, lanes
that ended are reset, `reset` events for those lanes, their first observations. Within a mode events fire in the order
of their definition. An environment that resets inside its own `step` gets `interval` and then `reset` events right
after it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard

import numpy as np

from quintain.core.registry import import_part
from quintain.core.rng import Rng
from quintain.core.state import require_count
from quintain.errors import EnvError, SettingsError
from quintain.services.user_code import named_failure
from quintain.typing import Keyword, Keywords, State, Stateful

if TYPE_CHECKING:
    from quintain.typing import Array, LaneIds

STARTUP, INTERVAL, STEP, RESET = BUILT_IN_MODES = "startup", "interval", "step", "reset"
_MISSPELT = 0.85
"""Similarity from which an unknown mode is taken for a misspelt built-in one: `rest` is, `restart` is not."""

Functor: TypeAlias = Callable[..., Any]
"""`f(env, lanes, **params)`, or a class that is called with `(cfg, env)` to make one."""


class HasLanes(Protocol):
    """The interface that the manager needs of an environment; functors may need more."""

    @property
    def num_lanes(self) -> int: ...


@dataclass(frozen=True)
class EventCfg:
    """An environment event: its function and its mode. A `mode` that is not built in is fired by `trigger`."""

    func: Functor | str
    """`f(env, lanes, **params)`, a class of such functors that is made with `(cfg, env)`, or module:Name of either."""
    mode: str = RESET
    interval_step: int = 10
    """Steps between two calls in mode interval."""
    count_from: Literal["run", "episode"] = "run"
    """Whether the steps of an interval are counted over the run, or from the start of each lane's episode."""
    is_global: bool = False
    """Whether the function is called once for all lanes, with None in place of lane ids."""
    params: Mapping[str, Keyword] = field(default_factory=dict)

    @property
    def interval(self) -> int:
        return 1 if self.mode == STEP else self.interval_step


class EnvEventManager:
    """Fires the events of one environment. Its counters and its functors' states are state."""

    def __init__(self, cfg: Mapping[str, EventCfg | Keywords], env: HasLanes, rng: Rng | None = None) -> None:
        self.env = env
        self.rng = rng or Rng(0)
        self.cfg = _checked(cfg)
        self.functors = {name: _make(name, each, env) for name, each in self.cfg.items()}
        self.draws = {name: _check(name, self.functors[name], each) for name, each in self.cfg.items()}
        self.counters: dict[str, Array] = {
            name: np.zeros(1 if each.is_global else env.num_lanes, np.int64)
            for name, each in self.cfg.items()
            if each.mode in (INTERVAL, STEP)
        }
        self.firings = dict.fromkeys(self.cfg, 0)
        self.apply(STARTUP)

    @property
    def available_modes(self) -> list[str]:
        return [*dict.fromkeys([*BUILT_IN_MODES, *(each.mode for each in self.cfg.values())])]

    @property
    def active_functors(self) -> dict[str, list[str]]:
        """The names of the events in each mode, in the order in which they fire."""
        modes = dict.fromkeys(each.mode for each in self.cfg.values())
        return {mode: [name for name, each in self.cfg.items() if each.mode == mode] for mode in modes}

    def get_functor(self, name: str) -> Functor:
        return self.functors[name]

    def get_functor_cfg(self, name: str) -> EventCfg:
        return self.cfg[name]

    def find_functors(self, pattern: str) -> list[str]:
        """Returns the events whose full name matches a regular expression."""
        return [name for name in self.cfg if re.fullmatch(pattern, name)]

    def apply(self, mode: str, env_ids: LaneIds | None = None) -> None:
        """Fires the events of a mode; `interval` counts one step and fires events that are due."""
        if mode not in self.available_modes:
            raise SettingsError(
                f"no environment event has the mode {mode!r}; there are {', '.join(self.available_modes)}", code="E0214"
            )
        if mode in (INTERVAL, STEP):
            if env_ids is not None:
                raise ValueError("interval events find their own lanes; call apply('interval') without any")
            self._count_step()
            return
        lanes = np.arange(self.env.num_lanes) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        if mode == RESET:
            self.reset(lanes)
        for name, each in self.cfg.items():
            if each.mode == mode:
                self._call(name, lanes)

    def reset(self, env_ids: LaneIds | None = None) -> None:
        """Calls `reset` of functors that have it for these lanes, and restarts intervals counted by episode."""
        lanes = np.arange(self.env.num_lanes) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        for name, counter in self.counters.items():
            if self.cfg[name].count_from == "episode":
                counter[lanes] = 0
        for name, functor in self.functors.items():
            if hasattr(functor, "reset"):
                with _named(name, "in reset()"):
                    functor.reset(lanes)

    def never_fired(self) -> list[str]:
        return [name for name, count in self.firings.items() if count == 0]

    @property
    def has_recordings(self) -> bool:
        """Whether any functor has data to `flush`."""
        return any(hasattr(functor, "flush") for functor in self.functors.values())

    def flush(self, directory: Path) -> None:
        """Makes functors write the data recorded since the last call."""
        for name, functor in self.functors.items():
            if hasattr(functor, "flush"):
                with _named(name, "in flush()"):
                    functor.flush(directory)

    def close(self) -> None:
        for functor in self.functors.values():
            if hasattr(functor, "close"):
                functor.close()

    def _count_step(self) -> None:
        for name, counter in self.counters.items():
            counter += 1
            due = np.flatnonzero(counter % self.cfg[name].interval == 0)
            if len(due):
                self._call(name, due)

    def _call(self, name: str, lanes: Array) -> None:
        cfg = self.cfg[name]
        draw = {"rng": self.rng.generator(name, self.firings[name])} if self.draws[name] else {}
        self.firings[name] += 1
        with _named(name, f"in mode {cfg.mode}"):
            self.functors[name](self.env, None if cfg.is_global else lanes, **cfg.params, **draw)

    def state_dict(self) -> State:
        return {
            "counters": {name: counter.copy() for name, counter in self.counters.items()},
            "firings": dict(self.firings),
            "memories": {n: functor.state_dict() for n, functor in self.functors.items() if _has_memory(functor)},
        }

    def load_state_dict(self, state: State) -> None:
        if set(state["firings"]) != set(self.firings):
            raise KeyError(f"saved environment events are {sorted(state['firings'])}, not {sorted(self.firings)}")
        for name, counter in self.counters.items():
            np.copyto(counter, state["counters"][name])
        self.firings = {name: require_count(f"firings.{name}", count) for name, count in state["firings"].items()}
        for name, functor in self.functors.items():
            if _has_memory(functor):
                functor.load_state_dict(state["memories"][name])


def _has_memory(functor: Functor) -> TypeGuard[Stateful]:
    return isinstance(functor, Stateful)


def _named(name: str, doing: str) -> AbstractContextManager[None]:
    return named_failure(f"environment event {name!r} failed {doing}", EnvError, "E0523")


def _checked(cfg: Mapping[str, EventCfg | Keywords]) -> dict[str, EventCfg]:
    """Returns validated events; refuses invalid ones by name."""
    made = {name: each if isinstance(each, EventCfg) else _cfg(name, each) for name, each in cfg.items()}
    for name, each in made.items():
        _require_sense(name, each)
    return made


def _require_sense(name: str, cfg: EventCfg) -> None:
    if cfg.count_from not in ("run", "episode") or cfg.interval_step < 1:
        raise SettingsError(f"event {name!r}: expected count_from run or episode, and interval_step of at least 1")
    if cfg.is_global and cfg.count_from == "episode":
        raise SettingsError(f"event {name!r} is global, so it cannot count from each lane's episode", code="E0233")
    meant = get_close_matches(cfg.mode, BUILT_IN_MODES, n=1, cutoff=_MISSPELT)
    if meant and meant[0] != cfg.mode:
        raise SettingsError(
            f"event {name!r} has the mode {cfg.mode!r}; did you mean {meant[0]!r}? A mode of your own needs a name "
            f"that is less like it",
            code="E0214",
        )


def _cfg(name: str, given: Keywords) -> EventCfg:
    if not isinstance(given, Mapping):
        raise SettingsError(
            f"event {name!r} is a {type(given).__name__}; give a mapping such as {{'func': f, 'mode': 'reset'}}, or an "
            f"EventCfg",
            code="E0233",
        )
    known = EventCfg.__dataclass_fields__
    if unknown := set(given) - set(known):
        raise SettingsError(f"event {name!r}: unknown {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if "func" not in given:
        raise SettingsError(f"event {name!r} has no func; give a function f(env, lanes), or module:Name of one")
    return EventCfg(**given)


def _make(name: str, cfg: EventCfg, env: HasLanes) -> Functor:
    part = import_part(f"event {name}", cfg.func) if isinstance(cfg.func, str) else cfg.func
    if not callable(part):
        raise SettingsError(f"event {name!r}: func is {part!r}, which cannot be called", code="E0233")
    if not isinstance(part, type):
        return part
    _require_call(name, part.__name__, part, (cfg, env), {})
    with _named(name, "when it was made"):
        made: Functor = part(cfg, env)
        return made


def _check(name: str, functor: Functor, cfg: EventCfg) -> bool:
    """Refuses a functor whose signature does not fit; returns whether it takes a random generator."""
    _require_call(name, "__call__", functor, (None, None), cfg.params, optional="rng")
    for method, arguments in (("reset", (None,)), ("flush", (None,)), ("close", ())):
        if hasattr(functor, method) and not isinstance(functor, type):
            _require_call(name, method, getattr(functor, method), arguments, {})
    return "rng" in inspect.signature(functor).parameters and "rng" not in cfg.params


def _require_call(
    name: str, method: str, function: Functor, arguments: tuple[Keyword, ...], params: Mapping[str, Keyword], *,
    optional: str = "",
) -> None:  # fmt: skip
    signature = inspect.signature(function)
    extra = {optional: None} if optional in signature.parameters and optional not in params else {}
    try:
        signature.bind(*arguments, **params, **extra)
    except TypeError as error:
        raise SettingsError(
            f"event {name!r}: {method}{signature} cannot be called with {len(arguments)} arguments and "
            f"{', '.join(params) or 'no parameters'} ({error})",
            code="E0233",
        ) from error
