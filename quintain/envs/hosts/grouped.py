"""Lanes in several environments, one for each collector; they appear as one to callers that do not step them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from quintain.envs.base import Env, StepResult
from quintain.envs.parameters import Parameters

if TYPE_CHECKING:
    from quintain.typing import Action, Array, LaneIds, LaneMask, Mirror, Observation, State, Tree, Values


class GroupedEnv(Env):
    """Groups of lanes; each has its lane numbers among all lanes, and so the same episodes."""

    def __init__(self, *groups: Env) -> None:
        self.groups = groups
        self.spec = groups[0].spec
        self.num_lanes = sum(group.num_lanes for group in groups)
        self.group_size = groups[0].group_size
        self.first_lane = groups[0].first_lane
        self.notes = groups[0].notes

    @property
    def lanes(self) -> list[slice]:
        """The lane ids of each group."""
        ends = np.cumsum([group.num_lanes for group in self.groups]).tolist()
        return [slice(end - group.num_lanes, end) for group, end in zip(self.groups, ends, strict=True)]

    def reset(self, lanes: LaneMask | None = None) -> Observation:
        wanted = [None if lanes is None else np.asarray(lanes)[part] for part in self.lanes]
        return _joined([group.reset(mine) for group, mine in zip(self.groups, wanted, strict=True)])

    def step(self, action: Action) -> StepResult:
        results = [
            group.step(_rows(action, part))._replace(info=None)
            for group, part in zip(self.groups, self.lanes, strict=True)
        ]
        return StepResult(*(_joined(parts) for parts in zip(*results, strict=True)))

    def begin_anew(self, played: Sequence[State]) -> Observation:
        before = [state for whole in played for state in whole["groups"].values()]
        return _joined([group.begin_anew(before) for group in self.groups])

    def action_mask(self) -> Values | None:
        mask: Values | None = _joined([group.action_mask() for group in self.groups])
        return mask

    def be_watched(self) -> None:
        for group in self.groups:
            group.be_watched()

    @property
    def pulse(self) -> int:
        return sum(group.pulse for group in self.groups)

    @property
    def mirror(self) -> Mirror | None:
        return self.groups[0].mirror

    @property
    def can_reset_lanes(self) -> bool:
        return all(group.can_reset_lanes for group in self.groups)

    def set_parameters(self, values: Parameters, lanes: LaneIds | None = None) -> None:
        chosen = list(range(self.num_lanes)) if lanes is None else [int(lane) for lane in lanes]
        for group, part in zip(self.groups, self.lanes, strict=True):
            mine = [place for place, lane in enumerate(chosen) if part.start <= lane < part.stop]
            if mine:
                rows = {key: value if np.ndim(value) == 0 else np.asarray(value)[mine] for key, value in values.items()}
                group.set_parameters(rows, [chosen[place] - part.start for place in mine])

    def require_parameters(self, names: Sequence[str]) -> None:
        self.groups[0].require_parameters(names)

    @property
    def renders_ends(self) -> bool:
        return self.groups[0].renders_ends

    def render(self) -> Array | None:
        return self.groups[0].render()

    def close(self) -> None:
        for group in self.groups:
            group.close()

    @property
    def exactness(self) -> str:
        return next((group.exactness for group in self.groups if group.exactness != "exact"), "exact")

    def state_dict(self) -> State:
        return {"groups": {str(place): group.state_dict() for place, group in enumerate(self.groups)}}

    def load_state_dict(self, state: State) -> None:
        for place, group in enumerate(self.groups):
            group.load_state_dict(state["groups"][str(place)])


def _joined(parts: Sequence[Tree]) -> Tree:
    """Concatenates the rows of all groups, in any structure."""
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
