"""Lanes in two environments whose workers step alternately: while one half steps, the policy acts for the other.

Each half has its lane numbers among all lanes, and so the same episodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.base import Env, StepResult
from quintain.envs.hosts.workers import WorkerEnv
from quintain.envs.parameters import Parameters

if TYPE_CHECKING:
    from quintain.typing import Action, Array, LaneIds, LaneMask, Mirror, Observation, State, Tree, Values


class HalvesEnv(Env):
    """Appears as one environment to callers that do not step the halves separately."""

    def __init__(self, first: WorkerEnv, second: WorkerEnv) -> None:
        self.halves = (first, second)
        self.spec = first.spec
        self.num_lanes = first.num_lanes + second.num_lanes
        self.group_size = first.group_size
        self.first_lane = first.first_lane
        self.notes = first.notes

    @property
    def lanes(self) -> tuple[slice, slice]:
        """The lane ids of each half."""
        middle = self.halves[0].num_lanes
        return slice(0, middle), slice(middle, self.num_lanes)

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        wanted = [None, None] if lanes is None else [np.asarray(lanes)[part] for part in self.lanes]
        return _joined([half.reset(mine) for half, mine in zip(self.halves, wanted, strict=True)])

    def step(self, action: Action) -> StepResult:
        for half, part in zip(self.halves, self.lanes, strict=True):
            half.begin_step(_rows(action, part))
        results = [half.finish_step() for half in self.halves]
        return StepResult(*(_joined(parts) for parts in zip(*results, strict=True)))

    def begin_anew(self, played: Sequence[State]) -> Observation:
        before = [state for whole in played for state in whole["halves"].values()]
        return _joined([half.begin_anew(before) for half in self.halves])

    def action_mask(self) -> Values | None:
        mask: Values | None = _joined([half.action_mask() for half in self.halves])
        return mask

    def be_watched(self) -> None:
        """Does nothing: workers are always watched."""

    @property
    def pulse(self) -> int:
        return sum(half.pulse for half in self.halves)

    @property
    def mirror(self) -> Mirror | None:
        return self.halves[0].mirror

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        chosen = list(range(self.num_lanes)) if lanes is None else [int(lane) for lane in lanes]
        for half, part in zip(self.halves, self.lanes, strict=True):
            mine = [place for place, lane in enumerate(chosen) if part.start <= lane < part.stop]
            if mine:
                rows = {key: value if np.ndim(value) == 0 else np.asarray(value)[mine] for key, value in values.items()}
                half.set_parameters(rows, [chosen[place] - part.start for place in mine])

    def require_parameters(self, names: Sequence[str]) -> None:
        self.halves[0].require_parameters(names)

    def render(self) -> Array | None:
        return self.halves[0].render()

    def close(self) -> None:
        for half in self.halves:
            half.close()

    @property
    def exactness(self) -> str:
        return next((half.exactness for half in self.halves if half.exactness != "exact"), "exact")

    def state_dict(self) -> State:
        return {"halves": {str(place): half.state_dict() for place, half in enumerate(self.halves)}}

    def load_state_dict(self, state: State) -> None:
        for place, half in enumerate(self.halves):
            half.load_state_dict(state["halves"][str(place)])


def _joined(parts: Sequence[Tree]) -> Tree:
    """Concatenates the rows of both halves, in any structure."""
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(each) for each in zip(*parts, strict=True))
    known = [part for part in parts if part is not None]
    if not known:
        return None
    like = known[0]
    return np.concatenate([np.zeros_like(like) if part is None else part for part in parts])


def _rows(tree: Tree, part: slice) -> Tree:
    if isinstance(tree, Mapping):
        return {key: _rows(value, part) for key, value in tree.items()}
    return tuple(_rows(value, part) for value in tree) if isinstance(tree, tuple) else tree[part]
