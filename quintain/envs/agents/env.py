"""Several copies of an environment of agents, stepped together; reports are gathered by behaviour.

A copy is any object like ML-Agents' `BaseEnv`: `reset()`, `step()`, `close()`, `behavior_specs`, `get_steps(name)` and
`set_actions(name, actions)`. A full id such as `Striker?team=1` is one *stream* of a copy; agents of all its teams and
of all copies belong to the behaviour `Striker`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

import numpy as np

from quintain.core.rng import Rng
from quintain.core.state import KeepsState, require_count
from quintain.data.spec import BehaviorSpec
from quintain.envs.agents.boundary import Boundary, Described, Reports, Steps, core_spec, joined
from quintain.envs.agents.samplers import Sampler, sampler_from
from quintain.envs.agents.specs import ActionTuple
from quintain.errors import EnvError
from quintain.services.user_code import named_failure
from quintain.typing import Stateful

if TYPE_CHECKING:
    from quintain.typing import Array, Mirror, State

_ID_BITS = 32
"""An agent's number is that of its stream, and in the low bits its own id."""


class BaseEnv(Protocol):
    """The interface of an environment of agents."""

    @property
    def behavior_specs(self) -> Mapping[str, Described]: ...
    def reset(self) -> None: ...
    def step(self) -> None: ...
    def close(self) -> None: ...
    def get_steps(self, behavior_name: str) -> tuple[Steps, Steps]: ...
    def set_actions(self, behavior_name: str, action: ActionTuple) -> None: ...


class Stream(NamedTuple):
    """The agents of one full id in one copy."""

    copy: int
    full_id: str


def behavior_of(full_id: str) -> str:
    """Returns the behaviour that a full id belongs to.

    >>> behavior_of("Striker?team=1")
    'Striker'
    """
    return full_id.partition("?")[0]


class AgentEnv(KeepsState):
    """Steps the copies and reads their reports."""

    renders_ends: ClassVar[bool] = False
    """Whether `render` shows the end of an episode after the step that ended it; copies begin the next one at once."""
    not_state: ClassVar[frozenset[str]] = frozenset(
        {"copies", "boundaries", "specs", "streams", "num_known", "rng", "on_nonfinite"}
    )

    def __init__(
        self,
        copies: Sequence[BaseEnv],
        rng: Rng = Rng(0),  # noqa: B008  # frozen
        *,
        on_nonfinite: str = "error",
    ) -> None:
        self.copies = list(copies)
        self.on_nonfinite = on_nonfinite
        self.rng = rng
        self.num_settings = 0
        self.specs: dict[str, BehaviorSpec] = {}
        """The spec of each behaviour's policy."""
        self.boundaries: dict[str, Boundary] = {}
        self.streams: dict[str, list[Stream]] = {}
        self.num_known = [0] * len(self.copies)
        self.counts: dict[str, list[int]] = {}
        """Number of agents of each stream that request a decision, by behaviour."""
        self.reset()

    def reset(self) -> None:
        """Resets all copies."""
        for copy in self.copies:
            with named_failure("reset() of the environment raised", EnvError, "E0502"):
                copy.reset()
        self._meet()
        if not self.specs:
            raise EnvError("the environment has no behaviours after reset(): behavior_specs is empty", code="E0511")

    def read(self, behavior: str) -> tuple[Reports, Reports]:
        """Returns the agents that ended and those that request a decision, concatenated over streams."""
        boundary, ends, decisions = self.boundaries[behavior], [], []
        for number, (copy, full_id) in enumerate(self.streams[behavior]):
            with named_failure(f"get_steps({full_id!r}) of the environment raised", EnvError, "E0501"):
                # Which is which is said by the place alone: classes may be another library's.
                decided, ended = self.copies[copy].get_steps(full_id)
            decisions.append(_numbered(boundary.decisions(decided), number))
            ends.append(_numbered(boundary.ends(ended), number))
        self.counts[behavior] = [len(reports) for reports in decisions]
        return joined(ends), joined(decisions)

    def set_actions(self, behavior: str, numbers: Array, choices: Array) -> None:
        """Passes actions to the agents that request a decision, in the order of `read`."""
        start = 0
        for (copy, full_id), count in zip(self.streams[behavior], self.counts[behavior], strict=True):
            if count:
                rows = slice(start, start + count)
                start += count
                with named_failure(f"set_actions({full_id!r}) of the environment raised", EnvError, "E0501"):
                    self.copies[copy].set_actions(full_id, ActionTuple(numbers[rows], choices[rows]))

    notes: tuple[str, ...] = ()

    def be_watched(self) -> None:
        """Does nothing: copies are stepped in the caller's thread."""

    @property
    def pulse(self) -> int:
        """Constant: all copies are stepped in one call, and the actor's own counter moves."""
        return 0

    def require_parameters(self, names: Sequence[str]) -> None:
        """Accepts all names: copies do not declare their parameters."""

    def set_parameters(self, values: Mapping[str, float], samplers: Mapping[str, Sampler] | None = None) -> None:
        """Sets environment parameters in all copies; one without `set_samplers` gets a value drawn once."""
        values = {name: float(value) for name, value in values.items()}
        samplers = {name: sampler_from(each) for name, each in (samplers or {}).items()}
        self.num_settings += 1
        for number, copy in enumerate(self.copies):
            drawn = {}
            if samplers and not hasattr(copy, "set_samplers"):
                rng = self.rng.generator("parameters", number, self.num_settings)
                drawn = {name: float(sampler.draw(rng, 1)[0]) for name, sampler in samplers.items()}
            with named_failure("the environment refused its parameters", EnvError, "E0521"):
                if samplers and not drawn:
                    copy.set_samplers(samplers)  # type: ignore[attr-defined]  # asked for above
                set_numbers(copy, {**values, **drawn})

    def render(self) -> Array | None:
        """Returns an image of the first copy, if it has a method `render`."""
        draw = getattr(self.copies[0], "render", None)
        if draw is None:
            return None
        with named_failure("render() of the environment raised", EnvError, "E0522"):
            drawn = draw()
        return None if drawn is None else np.asarray(drawn)

    @property
    def frames_per_second(self) -> float:
        return float(getattr(self.copies[0], "metadata", {}).get("render_fps", 30.0))

    def mirror_of(self, behavior: str) -> Mirror | None:
        """Returns the symmetry of a behaviour's observations and actions, if the environment has one."""
        mirror = getattr(self.copies[0], "mirror", None)
        return None if mirror is None else partial(mirror, behavior)

    def step(self) -> None:
        for copy in self.copies:
            with named_failure("step() of the environment raised", EnvError, "E0501"):
                copy.step()
        self._meet()

    def close(self) -> None:
        for copy in self.copies:
            copy.close()

    @property
    def exactness(self) -> str:
        """ "exact", or "statistical: <why>": how a resumed run continues."""
        without = next((copy for copy in self.copies if not isinstance(copy, Stateful)), None)
        if without is None:
            return "exact"
        return f"statistical: {type(without).__name__} has no state_dict and load_state_dict, so all agents begin anew"

    def state_dict(self) -> State:
        is_exact = self.exactness == "exact"
        copies = [copy.state_dict() for copy in self.copies if isinstance(copy, Stateful)] if is_exact else []
        # Agents are numbered by their stream, in the order in which streams were met.
        streams = {name: [list(stream) for stream in met] for name, met in self.streams.items()}
        return {**super().state_dict(), "copies": copies, "streams": streams}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict({name: state[name] for name in state if name not in ("copies", "streams")})
        self.streams = {name: [Stream(*each) for each in met] for name, met in state["streams"].items()}
        for name, met in self.streams.items():
            for copy_number, _ in met:
                require_count(f"streams.{name}", copy_number, len(self.copies) - 1)
        self.num_known = [0] * len(self.copies)
        for copy, saved in zip(self.copies, state["copies"], strict=False):
            if isinstance(copy, Stateful):
                copy.load_state_dict(saved)
        self._meet()
        for name, counts in self.counts.items():
            if len(counts) != len(self.streams[name]):
                raise ValueError(f"counts.{name} is of {len(counts)} streams, expected {len(self.streams[name])}")

    def _meet(self) -> None:
        """Registers full ids that a copy did not have before."""
        for number, copy in enumerate(self.copies):
            described = copy.behavior_specs
            if len(described) == self.num_known[number]:
                continue
            self.num_known[number] = len(described)
            for full_id, spec in described.items():
                self._meet_one(Stream(number, str(full_id)), spec)

    def _meet_one(self, stream: Stream, described: Described) -> None:
        behavior = behavior_of(stream.full_id)
        spec = core_spec(behavior, described)
        known = self.specs.setdefault(behavior, spec)
        if known != spec:
            raise EnvError(
                f"{stream.full_id!r} has {spec}, and other agents of behaviour {behavior!r} have {known}", code="E0511"
            )
        self.boundaries.setdefault(behavior, Boundary(behavior, spec, self.on_nonfinite))
        streams = self.streams.setdefault(behavior, [])
        if stream not in streams:
            streams.append(stream)


def _numbered(reports: Reports, stream: int) -> Reports:
    """Makes the ids of agents and groups of one stream unique; group 0 stays "no group"."""
    if stream == 0:
        return reports
    first = np.int64(stream) << _ID_BITS
    groups = np.where(reports.group_id > 0, reports.group_id + first, reports.group_id)
    return replace(reports, ids=reports.ids + first, group_id=groups)


def set_numbers(copy: BaseEnv, values: Mapping[str, float]) -> None:
    """Sets parameters of a copy, by our method or by ML-Agents' side channel."""
    if not values:
        return
    if hasattr(copy, "set_parameters"):
        copy.set_parameters(dict(values))
    elif hasattr(copy, "set_float_parameter"):
        for name, value in values.items():
            copy.set_float_parameter(name, value)
    else:
        raise EnvError(
            f"a {type(copy).__name__} takes no parameters, and {', '.join(values)} was set; give it a method "
            f"set_parameters(values)",
            code="E0521",
        )
