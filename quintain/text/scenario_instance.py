"""Builds the components of a text experiment: data, protocol, groups of agents and environments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.experiments.protocols.base import ProtocolHandler
from quintain.text.calls import Calls
from quintain.text.model_groups import PureTextSharedModelGroup, SharedModelGroups
from quintain.text.prompts import Prompts
from quintain.text.protocols import protocol_of
from quintain.text.sampling import TextEnvironment
from quintain.text.scenario import DataPoint, TextScenario

if TYPE_CHECKING:
    from quintain.core.rng import Rng
    from quintain.text.settings import TextAgentSettings, TextTrainerSettings

_SHARED = ("model_provider", "model_name", "freeze_agent", "use_dummy_api", "fine_tune_from_scratch")
"""Settings in which the agents of a group must agree."""


@dataclass
class TextScenarioInstance:
    """All components of a text experiment."""

    text_settings: TextTrainerSettings
    rng: Rng
    protocol_handler: ProtocolHandler
    calls: Calls
    scenario: TextScenario
    shared_model_groups: SharedModelGroups
    train_environment: TextEnvironment
    test_environment: TextEnvironment
    agents: dict[str, TextAgentSettings] = field(default_factory=dict)

    @property
    def train_dataset(self) -> Sequence[DataPoint]:
        return self.scenario.train

    @property
    def test_dataset(self) -> Sequence[DataPoint]:
        return self.scenario.test


def build_text_instance(settings: TextTrainerSettings, rng: Rng) -> TextScenarioInstance:
    """Builds protocol, data, groups and environments; refuses what cannot run before there is a run directory."""
    protocol = protocol_of(settings)
    names = tuple(protocol.agent_names)
    if unknown := sorted(settings.agents.keys() - {*names, "_default"}):
        raise SettingsError(
            f"experiment.loop.agents has {', '.join(unknown)}; the protocol "
            f"{protocol.hyper_params.get('interaction_protocol')} has {', '.join(names)}",
            code="E0205",
        )
    agents = {name: settings.agent(name) for name in names}
    calls = Calls(settings.api)
    members: dict[str, dict[str, TextAgentSettings]] = {}
    for name, agent in agents.items():
        members.setdefault(agent.shared_model_group or name, {})[name] = agent
    for group, found in members.items():
        _require_agreement(group, found)
    groups = SharedModelGroups(
        {name: PureTextSharedModelGroup(name, found, names, settings.jobs, calls) for name, found in members.items()}
    )
    words = {name: agent.max_response_words for name, agent in agents.items()}
    scenario_class = registry.get("text_scenario", settings.scenario.type).load()
    scenario: TextScenario = scenario_class(settings.scenario, rng.child("scenario"))
    prompts = Prompts(protocol, settings.scenario.templates, words, settings.protocol.randomize_channel_order)  # type: ignore[attr-defined]  # of TextScenarioSettings
    assert prompts.templates, "read now, so that a missing one is refused before the run begins"
    num_train = settings.rl.rollouts_per_iteration
    per_test = len(scenario.test) if settings.text_rl.test_on_whole_dataset else num_train
    num_test = per_test * settings.rl.num_test_iterations
    parts = (protocol, prompts, groups, settings, calls, rng)
    train = TextEnvironment("train", scenario.train, num_train, *parts)
    test = TextEnvironment("test", scenario.test, num_test, *parts)
    return TextScenarioInstance(settings, rng, protocol, calls, scenario, groups, train, test, agents)


def _require_agreement(group: str, members: dict[str, TextAgentSettings]) -> None:
    (first, settings), *others = members.items()
    for name, other in others:
        given, found = dict(settings), dict(other)
        if differing := [each for each in _SHARED if given[each] != found[each]]:
            raise SettingsError(
                f'experiment.loop.agents: {first} and {name} share the model of group "{group}" and differ in '
                f"{', '.join(differing)}; make them equal",
                code="E0205",
            )
