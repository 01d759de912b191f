"""Registries of trainers, protocol handlers and scenarios: a decorator adds a class by name. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import AgentParameters
from quintain.experiments.names import InteractionProtocolType, TrainerType
from quintain.experiments.parameters_base import registered_classes
from quintain.experiments.protocols.zero_knowledge import ZeroKnowledgeProtocol
from quintain.experiments.scenario_names import (
    DataKind,
    ScenarioName,
    add_scenario,
    scenario_named,
    set_trainer_data_kind,
)

if TYPE_CHECKING:
    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.parameters_base import BaseHyperParameters
    from quintain.experiments.protocols.base import ProtocolHandler

Class = TypeVar("Class", bound=type)

TRAINER_REGISTRY: dict[str, type] = {}
"""Trainer classes by name."""
SHIPPED_PROTOCOLS = "quintain.experiments.protocols.handlers"
SHIPPED_TRAINERS = ("quintain.experiments.tensordict_rl", "quintain.experiments.solo_agent")
_protocols: dict[tuple[str, str | None], type] = {}


def register_trainer(name: str) -> Callable[[Class], Class]:
    """Returns the decorator that makes a trainer class available as `HyperParameters(trainer=name)`."""

    def remember(cls: Class) -> Class:
        TRAINER_REGISTRY[name] = cls
        TrainerType.add(name)
        set_trainer_data_kind(name, getattr(cls, "data_kind", None))
        return cls

    return remember


def get_trainer_class(name: str) -> type:
    """Returns a trainer class by its name."""
    TrainerType.check(name, "trainer")
    for module in SHIPPED_TRAINERS:
        import_module(module)
    if name not in TRAINER_REGISTRY:
        raise SettingsError(
            f'trainer "{name}" is not built yet; trainers that are: {", ".join(TRAINER_REGISTRY) or "none"}',
            code="E0204",
        )
    return TRAINER_REGISTRY[name]


def register_protocol_handler(name: str, scenario: str | None = None) -> Callable[[Class], Class]:
    """Returns the decorator that makes a protocol available by its name; one for a scenario precedes one for all."""

    def remember(cls: Class) -> Class:
        _protocols[name, scenario] = cls
        InteractionProtocolType.add(name)
        return cls

    return remember


def build_protocol_handler(
    hyper_params: BaseHyperParameters, settings: ExperimentSettings | None = None
) -> ProtocolHandler:
    """Makes the handler of the experiment's protocol."""
    import_module(SHIPPED_PROTOCOLS)
    name = hyper_params.get("interaction_protocol")
    found = _protocols.get((name, hyper_params.get("scenario"))) or _protocols.get((name, None))
    if found is None:
        known = ", ".join(sorted({each for each, _ in _protocols}))
        raise SettingsError(f'interaction protocol "{name}" has no handler; expected one of: {known}', code="E0204")
    if hyper_params.get("protocol_common.zero_knowledge"):
        return ZeroKnowledgeProtocol(hyper_params, settings, found)
    handler: ProtocolHandler = found(hyper_params, settings)
    return handler


def _own_classes(hyper_params: BaseHyperParameters) -> list[type]:
    """Returns the classes of users' own that hyper-parameters name, or consist of."""
    scenario, protocol, trainer = (hyper_params.get(each) for each in ("scenario", "interaction_protocol", "trainer"))
    targets = [
        TRAINER_REGISTRY.get(trainer),
        scenario_named(scenario).target,
        _protocols.get((protocol, scenario)) or _protocols.get((protocol, None)),
        *registered_classes().values(),
    ]
    return [each for each in targets if isinstance(each, type) and not each.__module__.startswith("quintain.")]


def is_local(hyper_params: BaseHyperParameters) -> bool:
    """Whether some class of a user's own is in the main script or in a function, so that no process can import it."""
    return any("<" in each.__qualname__ or each.__module__ == "__main__" for each in _own_classes(hyper_params))


def code_of(hyper_params: BaseHyperParameters) -> list[str]:
    """Returns the classes of users' own as module:Name, as far as any process can import them."""
    places = [f"{each.__module__}:{each.__qualname__}" for each in _own_classes(hyper_params)]
    return [each for each in places if "<" not in each and not each.startswith("__main__:")]


def register_scenario(
    name: str, *, agent_parameters: type[AgentParameters] = AgentParameters, data_kind: DataKind = "tensors"
) -> Callable[[Class], Class]:
    """Returns the decorator that makes a scenario available by its name."""

    def remember(cls: Class) -> Class:
        add_scenario(ScenarioName(name, agent_parameters, data_kind, cls))
        return cls

    return remember
