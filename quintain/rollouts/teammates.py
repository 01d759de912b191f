"""Tracks the groups of agents: teammates, their rewards, and those that remain when an agent's trajectory ends.

A group is its members that took an action and have not reported since, whether they decided now or at an earlier step.
Group 0, and any below, is no group. Vectorized over all agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from quintain.core.state import KeepsState
from quintain.data import fields as f
from quintain.data.spec import BehaviorSpec, leaves
from quintain.data.teammates import no_teammates, own_names, teammate_fields
from quintain.data.trajectory import TEAMMATES_REWARD, flat_steps
from quintain.envs.agents.boundary import Reports
from quintain.envs.agents.slots import ABSENT

if TYPE_CHECKING:
    from quintain.rollouts.agent_assembler import AgentAssembler
    from quintain.typing import Array


class Present(NamedTuple):
    """Agents that are present after a step of the environment."""

    slots: Array
    """[p]; ABSENT for those that are new"""
    groups: Array
    """[p]"""
    obs: dict[str, Array]
    """Their observations, by field name, [p, ...]"""


class Teammates(KeepsState):
    """The group of the agent in each slot, and its teammates' rewards since it acted."""

    not_state: ClassVar[frozenset[str]] = frozenset({"spec", "own_names", "present"})

    def __init__(self, spec: BehaviorSpec) -> None:
        self.spec = spec
        self.own_names = own_names(spec)
        self.group: Array = np.zeros(0, np.int64)
        self.reward: Array = np.zeros(0, np.float64)
        self.present: Present | None = None

    def no_steps(self, horizon: int) -> dict[str, Array]:
        """Returns the teammate fields of steps, with no slots and no teammates."""
        return {**no_teammates(self.spec, 0, horizon), TEAMMATES_REWARD: np.zeros((0, horizon), np.float32)}

    def hear(self, agents: AgentAssembler, ends: Reports, decisions: Reports) -> None:
        """Adds the rewards of a step to teammates, and records which agents are present after it."""
        ended, asking = agents.slots.find(ends.ids), agents.slots.find(decisions.ids)
        # Under the same id another agent has begun, which brought nothing yet.
        asking[np.isin(decisions.ids, ends.ids)] = ABSENT
        is_acting = agents.slots.is_used & agents.is_acting
        self._share_rewards(np.flatnonzero(is_acting), (ended, ends.reward), (asking, decisions.reward))
        known = asking[asking >= 0]
        if len(ends) or (agents.length[known] + 1 == agents.horizon).any():
            self.present = self._who_is_there(agents, is_acting, (ends, ended), (decisions, asking))

    def _share_rewards(self, acting: Array, *reports: tuple[Array, Array]) -> None:
        got = np.zeros(len(self.group))
        for slots, reward in reports:
            got[slots[slots >= 0]] = reward[slots >= 0]
        group = self.group[acting]
        _, number = np.unique(group, return_inverse=True)
        total = np.bincount(number, weights=got[acting])
        if len(total):
            self.reward[acting] += np.where(group > 0, total[number] - got[acting], 0.0)

    def _who_is_there(
        self, agents: AgentAssembler, is_acting: Array, ended: tuple[Reports, Array], asked: tuple[Reports, Array]
    ) -> Present:
        """Returns agents that decide next, are still acting, or were interrupted, with their last observations.

        New agents count if a member of their group is still acting. Otherwise they begin another episode.
        """
        (ends, ended_at), (decisions, asking) = ended, asked
        assert ends.interrupted is not None
        acts_on = is_acting.copy()
        acts_on[ended_at[ended_at >= 0]] = False
        counts = (asking >= 0) | np.isin(decisions.group_id, self.group[acts_on])
        is_cut = ends.interrupted & (ended_at >= 0)
        acts_on[asking[asking >= 0]] = False
        silent = np.flatnonzero(acts_on)
        open_steps = silent * agents.horizon + agents.length[silent]
        obs = {
            name: np.concatenate(
                (decisions.obs[name][counts], flat_steps(agents.steps[name])[open_steps], ends.obs[name][is_cut])
            )
            for name in leaves(self.spec.obs, f.OBS)
        }
        return Present(
            slots=np.concatenate((asking[counts], silent, ended_at[is_cut])),
            groups=np.concatenate((decisions.group_id[counts], self.group[silent], self.group[ended_at[is_cut]])),
            obs=obs,
        )

    def following(self, slots: Array) -> dict[str, Array]:
        """Returns the present teammates of these agents and their observations, [k, M, ...]."""
        assert self.present is not None, "hear() comes before trajectories are closed"
        place = _places(self.present.slots, len(self.group))
        table = teammates_table(self.present.groups, self.group[slots], place[slots])
        seen = zip(leaves(self.spec.obs, f.TEAMMATE_OBS), self.present.obs.values(), strict=True)
        return {f.TEAMMATES: table >= 0, **{name: _taken(rows, table) for name, rows in seen}}

    def settle(self, agents: AgentAssembler, slots: Array, places: Array) -> None:
        """Writes the teammates' rewards since these agents acted."""
        flat_steps(agents.steps[TEAMMATES_REWARD])[places] = self.reward[slots]
        self.reward[slots] = 0.0

    def look(self, agents: AgentAssembler) -> None:
        """Writes observations and actions of the teammates of the agents that just decided."""
        at = agents.deciding
        acting = np.flatnonzero(agents.slots.is_used & agents.is_acting)
        table = teammates_table(self.group[acting], self.group[at], _places(acting, len(self.group))[at])
        self._widen(agents.steps, table.shape[1])
        places = at * agents.horizon + agents.length[at]
        shown = acting * agents.horizon + agents.length[acting]
        written = {name: _taken(flat_steps(agents.steps[own])[shown], table) for name, own in self.own_names.items()}
        for name, rows in {f.TEAMMATES: table >= 0, **written}.items():
            field = flat_steps(agents.steps[name])
            field[places, : table.shape[1]] = rows
            field[places, table.shape[1] :] = 0

    def _widen(self, steps: dict[str, Array], width: int) -> None:
        for name in teammate_fields(self.spec):
            missing = width - steps[name].shape[2]
            if missing > 0:
                more = np.zeros((*steps[name].shape[:2], missing, *steps[name].shape[3:]), steps[name].dtype)
                steps[name] = np.concatenate((steps[name], more), axis=2)


def teammates_table(groups: Array, wanted: Array, own: Array) -> Array:
    """Returns for each of n agents the indices of its teammates among p agents, [n, M]; ABSENT where there are fewer.

    `groups` [p] are those of the p agents, `wanted` [n] those of the n; `own` [n] is the index of the agent itself.

    >>> teammates_table(np.array([5, 7, 5, 5]), np.array([5, 7]), np.array([2, 1])).tolist()
    [[0, 3], [-1, -1]]
    """
    order = np.argsort(groups, kind="stable")
    arranged = groups[order]
    start = np.searchsorted(arranged, wanted, side="left")
    size = np.searchsorted(arranged, wanted, side="right") - start
    rank = np.empty(len(groups), np.int64)
    rank[order] = np.arange(len(groups))
    is_there = own >= 0
    own_rank = np.where(is_there, rank[own] - start if len(rank) else 0, len(groups))
    num_teammates = np.where(wanted > 0, size - is_there, 0)
    column = np.arange(num_teammates.max(initial=0))[None, :]
    place = start[:, None] + column + (column >= own_rank[:, None])
    found: Array = (
        np.where(column < num_teammates[:, None], order.take(place, mode="clip"), ABSENT) if len(order) else place
    )
    return found


def _places(slots: Array, capacity: int) -> Array:
    """Returns for each slot its index among these; ABSENT where it has none."""
    place = np.full(capacity, ABSENT, np.int64)
    known = np.flatnonzero(slots >= 0)
    place[slots[known]] = known
    return place


def _taken(rows: Array, table: Array) -> Array:
    """Returns rows [n, M, ...] by a table of teammates, zeros where there is none."""
    taken = np.zeros((*table.shape, *rows.shape[1:]), rows.dtype)
    is_there = table >= 0
    taken[is_there] = rows[table[is_there]]
    return taken
