"""What the names of scenarios and trainers stand for before any of their code is imported."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, TypeAlias

from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import (
    AgentParameters,
    CodeValidationAgentParameters,
    FindThePlusAgentParameters,
    GraphIsomorphismAgentParameters,
    ImageClassificationAgentParameters,
)
from quintain.experiments.names import ScenarioType

DataKind: TypeAlias = Literal["tensors", "text"]


@dataclass(frozen=True)
class ScenarioName:
    """A scenario: the class of its agents' parameters, its kind of data, and where its code is."""

    name: str
    agent_parameters: type[AgentParameters]
    data_kind: DataKind
    target: str | type | None = None
    """The class, module:Name, or None for a scenario that is not shipped."""

    def load(self) -> type:
        """Imports the scenario's class."""
        if isinstance(self.target, str):
            module, _, name = self.target.partition(":")
            found: type = getattr(import_module(module), name)
            return found
        assert self.target is not None, "shipped_scenario refuses it"
        return self.target


_scenarios = {
    each.name: each
    for each in (
        ScenarioName("graph_isomorphism", GraphIsomorphismAgentParameters, "tensors"),
        ScenarioName("image_classification", ImageClassificationAgentParameters, "tensors"),
        ScenarioName("code_validation", CodeValidationAgentParameters, "text"),
        ScenarioName(
            "find_the_plus", FindThePlusAgentParameters, "tensors", "quintain.experiments.find_the_plus:FindThePlus"
        ),
    )
}
_data_kinds: dict[str, DataKind] = {
    "vanilla_ppo": "tensors",
    "solo_agent": "tensors",
    "spg": "tensors",
    "reinforce": "tensors",
    "pure_text_ei": "text",
    "pure_text_malt": "text",
}


def add_scenario(scenario: ScenarioName) -> None:
    """Makes a scenario available under its name."""
    _scenarios[scenario.name] = scenario
    ScenarioType.add(scenario.name)


def scenario_named(name: str) -> ScenarioName:
    """Returns a scenario by its name."""
    return _scenarios[ScenarioType.check(name, "scenario")]


def shipped_scenario(name: str) -> ScenarioName:
    """Returns a scenario that can be built; raises for a name of nip's whose scenario is not shipped."""
    scenario = scenario_named(name)
    if scenario.target is None:
        raise SettingsError(
            f'scenario "{name}" is not shipped; decorate a class of yours with @register_scenario("{name}")',
            code="E0204",
        )
    return scenario


def trainer_data_kind(name: str) -> DataKind | None:
    """Returns the kind of data that a trainer works on; None for one that takes any."""
    return _data_kinds.get(name)


def set_trainer_data_kind(name: str, kind: DataKind | None) -> None:
    """Remembers the kind of data that a trainer works on."""
    if kind is not None:
        _data_kinds[name] = kind
