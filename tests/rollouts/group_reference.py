"""Groups one agent at a time, with plain lists: what arrays must agree with."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.rollouts.agent_reference import Said


@dataclass
class Member:
    """One agent that acts."""

    group: int
    obs: float
    action: float
    teammates: list[tuple[float, float]] = field(default_factory=list)
    mates_reward: float = 0.0
    rows: list[tuple[list[tuple[float, float]], float]] = field(default_factory=list)


@dataclass
class Closed:
    """One trajectory: what the teammates saw, did and got at each step, and who was there after."""

    agent: int
    rows: list[tuple[list[tuple[float, float]], float]]
    after: list[float]


class PlainGroups:
    """Follows every agent by itself."""

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.members: dict[int, Member] = {}
        self.trajectories: list[Closed] = []

    def step(self, ends: list[Said], decisions: list[Said], actions: list[float]) -> None:
        ended = {said.agent for said in ends}
        asks = [said for said in decisions if said.agent not in ended and said.agent in self.members]
        for said in [*ends, *asks]:
            for name, member in self.members.items():
                teller = self.members.get(said.agent)
                if teller and name != said.agent and member.group == teller.group and member.group > 0:
                    member.mates_reward += said.reward
        there = self._who_is_there(ends, decisions, asks)
        for said in ends:
            if said.agent in self.members:
                self._settle(said.agent)
                self._close(said.agent, self.members[said.agent].group, there)
        for said in asks:
            self._settle(said.agent)
            if len(self.members[said.agent].rows) == self.horizon:
                self._close(said.agent, said.group, there)
        for said in ends:
            self.members.pop(said.agent, None)
        for said, action in zip(decisions, actions, strict=True):
            rows = self.members[said.agent].rows if said.agent in self.members else []
            self.members[said.agent] = Member(said.group, said.obs, action, rows=rows)
        for said in decisions:
            self.members[said.agent].teammates = [
                (other.obs, other.action)
                for name, other in self.members.items()
                if name != said.agent and other.group == said.group > 0
            ]

    def _who_is_there(self, ends: list[Said], decisions: list[Said], asks: list[Said]) -> list[tuple[int, int, float]]:
        """Returns (agent, group, obs) of everybody after the step; newcomers are agent -1."""
        ended = {said.agent for said in ends}
        survivors = {name: member for name, member in self.members.items() if name not in ended}
        groups = {member.group for member in survivors.values()}
        known = {said.agent for said in asks}
        there = [(said.agent, said.group, said.obs) for said in asks]
        there += [(-1, s.group, s.obs) for s in decisions if s not in asks and s.group in groups]
        there += [(name, m.group, m.obs) for name, m in survivors.items() if name not in known]
        there += [
            (s.agent, self.members[s.agent].group, s.obs) for s in ends if s.interrupted and s.agent in self.members
        ]
        return there

    def _settle(self, name: int) -> None:
        member = self.members[name]
        member.rows.append((member.teammates, member.mates_reward))
        member.mates_reward = 0.0

    def _close(self, name: int, group: int, there: list[tuple[int, int, float]]) -> None:
        member = self.members[name]
        after = [obs for agent, other, obs in there if agent != name and other == group > 0]
        self.trajectories.append(Closed(name, member.rows, after))
        member.rows = []
