"""An environment of agents written as toys are: plain lists, few rules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Toy:
    """Each agent sees how often it acted and ends after `length` actions; ids are used again."""

    def __init__(self, length: int = 3, teams: int = 1, worker_id: int = 0, late: int = 0, asks: bool = True) -> None:
        self.length, self.worker_id, self.late, self.asks = length, worker_id, late, asks
        self.names = [f"Toy?team={team}" for team in range(teams)]
        self.time = 0
        self.ages: dict[str, int] = {}
        self.ended: dict[str, bool] = {}
        self.given: dict[str, list[Any]] = {name: [] for name in self.names}
        self.is_closed = False

    @property
    def behavior_specs(self) -> dict[str, Any]:
        spec = SimpleNamespace(
            observation_specs=[SimpleNamespace(shape=(2,))],
            action_spec=SimpleNamespace(continuous_size=1, discrete_branches=(2,)),
        )
        names = [*self.names, *(["Late"] if self.late and self.time >= self.late else [])]
        return dict.fromkeys(names, spec)

    def reset(self) -> None:
        self.time = 0
        self.ages = dict.fromkeys(self.names, 0)
        self.ended = dict.fromkeys(self.names, False)

    def set_actions(self, name: str, action: Any) -> None:
        self.given[name].append((action.continuous.tolist(), action.discrete.tolist()))

    def step(self) -> None:
        self.time += 1
        for name in self.names:
            self.ages[name] += 1
            self.ended[name] = self.ages[name] == self.length
            if self.ended[name]:
                self.ages[name] = 0

    def get_steps(self, name: str) -> tuple[Any, Any]:
        here = 1 if self.asks else 0
        age, team = self.ages[name], self.names.index(name)
        decision = SimpleNamespace(
            obs=[[[float(age), float(team)]]][:here], reward=[1.0][:here], agent_id=[5][:here], action_mask=None
        )
        over = 1 if self.ended[name] else 0
        terminal = SimpleNamespace(
            obs=[[[float(self.length), float(team)]]][:over],
            reward=[1.0][:over],
            agent_id=[5][:over],
            interrupted=[False][:over],
        )
        return decision, terminal

    def close(self) -> None:
        self.is_closed = True


class Wide(Toy):
    """Sees a row of numbers and a table of them."""

    @property
    def behavior_specs(self) -> dict[str, Any]:
        specs = super().behavior_specs
        for spec in specs.values():
            spec.observation_specs = [SimpleNamespace(shape=(2,)), SimpleNamespace(shape=(3, 2))]
        return specs

    def get_steps(self, name: str) -> tuple[Any, Any]:
        decision, terminal = super().get_steps(name)
        for each in (decision, terminal):
            each.obs = [*each.obs, [[[0.5, -0.5]] * 3] * len(each.agent_id)]
            each.obs = each.obs if len(each.agent_id) else []
        return decision, terminal


class Tunable(Toy):
    """Takes numbers, and cannot draw them itself."""

    def set_parameters(self, values: dict[str, float]) -> None:
        self.values = values


class Faulty(Toy):
    """Raises at its third step."""

    def step(self) -> None:
        super().step()
        if self.time == 3:
            raise RuntimeError("the engine stalled")


class Unfinished:
    """Is no environment of agents."""

    def reset(self) -> None: ...
