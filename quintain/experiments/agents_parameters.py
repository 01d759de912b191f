"""Parameters of agents: learning-rate factors, update schedules, and one set for each agent by its name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import ClassVar, Literal, Self, TypeAlias

from quintain.errors import SettingsError
from quintain.experiments.parameters_base import (
    TYPE_KEY,
    Options,
    ParameterValue,
    SubParameters,
    Value,
    get_parameter_class,
    register_parameter_class,
    register_parameter_value_class,
)
from quintain.experiments.trainer_parameters import Natural, NonNegative, Positive
from quintain.typing import JsonObject

ActivationType: TypeAlias = Literal["relu", "tanh", "sigmoid"]
DEFAULT_AGENT = "_default"


@register_parameter_class
@dataclass
class LrFactors(SubParameters):
    """Factors on the learning rate, for the actor's and for the critic's parameters."""

    actor: NonNegative = 1.0
    critic: NonNegative = 1.0


class AgentUpdateSchedule(ParameterValue):
    """Says in which iterations an agent is updated."""

    @abstractmethod
    def arguments(self) -> dict[str, int | bool]:
        """Returns the arguments of the constructor."""

    @abstractmethod
    def is_updated(self, iteration: int) -> bool:
        """Whether the agent is updated in this iteration."""

    def to_dict(self) -> JsonObject:
        """Returns {"_type": Name, Name: arguments}."""
        name = type(self).__name__
        return {TYPE_KEY: name, name: self.arguments()}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Makes the schedule that `to_dict` wrote."""
        given = data.get(cls.__name__, {})
        unknown = set(data) - {TYPE_KEY, cls.__name__}
        if not isinstance(given, Mapping) or unknown:
            raise SettingsError(
                f"update_schedule: found {dict(data)}, expected _type and {cls.__name__} with its arguments",
                code="E0205",
            )
        try:
            return cls(**given)
        except TypeError as error:
            raise SettingsError(f"update_schedule: {error}", code="E0205") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and type(self) is type(other) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((type(self).__name__, *self.arguments().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.arguments().items())})"


@register_parameter_value_class
class ConstantUpdateSchedule(AgentUpdateSchedule):
    """Updates the agent in every iteration."""

    def arguments(self) -> dict[str, int | bool]:
        return {}

    def is_updated(self, iteration: int) -> bool:
        return True


@register_parameter_value_class
class ContiguousPeriodicUpdateSchedule(AgentUpdateSchedule):
    """Updates the agent where start <= iteration modulo period < stop."""

    def __init__(self, period: int, start: int, stop: int) -> None:
        if not all(type(each) is int for each in (period, start, stop)) or not 0 <= start < stop <= period:
            raise SettingsError(
                f"update_schedule: found period {period}, start {start}, stop {stop}; "
                "expected 0 <= start < stop <= period",
                code="E0205",
            )
        self.period, self.start, self.stop = period, start, stop

    def arguments(self) -> dict[str, int | bool]:
        return {"period": self.period, "start": self.start, "stop": self.stop}

    def is_updated(self, iteration: int) -> bool:
        return self.start <= iteration % self.period < self.stop


@register_parameter_value_class
class AlternatingPeriodicUpdateSchedule(ContiguousPeriodicUpdateSchedule):
    """Updates the first agent in the first rounds of each period, and the second agent in the others."""

    def __init__(self, period: int, first_agent_num_rounds: int, first_agent: bool = True) -> None:
        self.first_agent_num_rounds, self.first_agent = first_agent_num_rounds, first_agent
        start, stop = (0, first_agent_num_rounds) if first_agent else (first_agent_num_rounds, period)
        super().__init__(period, start, stop)

    def arguments(self) -> dict[str, int | bool]:
        rounds = self.first_agent_num_rounds
        return {"period": self.period, "first_agent_num_rounds": rounds, "first_agent": self.first_agent}


@register_parameter_class
@dataclass
class AgentParameters(SubParameters):
    """Parameters that every agent has."""

    is_random: ClassVar[bool] = False

    agent_lr_factor: LrFactors | Options | None = None
    body_lr_factor: LrFactors | Options | None = None
    update_schedule: AgentUpdateSchedule = field(default_factory=ConstantUpdateSchedule)
    use_manual_architecture: bool = False
    normalize_message_history: bool = False
    load_checkpoint_and_parameters: bool = False
    checkpoint_entity: str | None = None
    checkpoint_project: str | None = None
    checkpoint_run_id: str | None = None
    checkpoint_version: str = "latest"
    use_orthogonal_initialisation: bool = True
    orthogonal_initialisation_gain: float = 1.0


@register_parameter_class
@dataclass
class RandomAgentParameters(AgentParameters):
    """An agent that acts uniformly at random."""

    is_random: ClassVar[bool] = True


@register_parameter_class
@dataclass
class GraphIsomorphismAgentParameters(AgentParameters):
    """Parameters of an agent of the scenario `graph_isomorphism`."""

    activation_function: ActivationType = "tanh"
    num_gnn_layers: Natural = 5
    d_gnn: Positive = 16
    d_gin_mlp: Positive = 64
    gnn_output_digits: Natural | None = None
    use_dual_gnn: bool = True
    num_heads: Positive = 4
    num_transformer_layers: Natural = 4
    d_transformer: Positive = 16
    d_transformer_mlp: Positive = 64
    transformer_dropout: NonNegative = 0.0
    d_node_selector: Positive = 16
    num_node_selector_layers: Positive = 2
    d_decider: Positive = 16
    num_decider_layers: Positive = 2
    include_round_in_decider: bool = True
    d_linear_message_selector: Positive = 16
    num_linear_message_selector_layers: Positive = 2
    d_value: Positive = 16
    num_value_layers: Positive = 2
    include_round_in_value: bool = True
    use_batch_norm: bool = True
    noise_sigma: NonNegative = 0.0
    use_pair_invariant_pooling: bool = True
    gnn_lr_factor: LrFactors | Options | None = None


@register_parameter_class
@dataclass
class ImageClassificationAgentParameters(AgentParameters):
    """Parameters of an agent of the scenario `image_classification`, which is not shipped."""


@register_parameter_class
@dataclass
class FindThePlusAgentParameters(AgentParameters):
    """Parameters of an agent of the scenario `find_the_plus`: a perceptron."""


@register_parameter_class
@dataclass
class PureTextAgentParameters(AgentParameters):
    """Parameters of an agent that is a language model."""

    model_provider: str = "OpenAI"
    model_name: str = "gpt-4o-mini-2024-07-18"
    use_dummy_api: bool = False
    shared_model_group: str | None = None
    temperature: NonNegative | None = None
    top_p: NonNegative | None = None
    repetition_penalty: float | None = None
    dpo_beta: NonNegative | None = None
    fine_tune_from_scratch: bool = True
    freeze_agent: bool = False
    max_response_words: Positive = 150
    max_tokens_per_message: Positive | None = None
    num_invalid_generation_retries: Natural = 20


@register_parameter_class
@dataclass
class CodeValidationAgentParameters(PureTextAgentParameters):
    """Parameters of an agent of the scenario `code_validation`."""


class AgentsParameters(dict[str, AgentParameters]):
    """Parameters of agents by name; `_default` stands for every agent that is not named."""

    def __getitem__(self, name: str) -> AgentParameters:
        if not dict.__contains__(self, name) and dict.__contains__(self, DEFAULT_AGENT):
            return dict.__getitem__(self, DEFAULT_AGENT)
        return dict.__getitem__(self, name)

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or dict.__contains__(self, DEFAULT_AGENT)

    def get(self, name: str, default: Value = None) -> Value:
        return self[name] if name in self else default  # noqa: SIM401  # it is that method

    @property
    def agents_update_repr(self) -> str:
        """Describes the schedules of all agents in a few words, for tables of runs."""
        schedules = [each.update_schedule for each in self.values()]
        if all(isinstance(each, ConstantUpdateSchedule) for each in schedules):
            return "Standard"
        alternating = [each for each in schedules if isinstance(each, AlternatingPeriodicUpdateSchedule)]
        if len(schedules) == len(alternating) == 2:
            first = sorted(zip(self, alternating, strict=True), key=lambda pair: not pair[1].first_agent)
            (one, a), (two, b) = first
            same = (a.period, a.first_agent_num_rounds) == (b.period, b.first_agent_num_rounds)
            if same and a.first_agent and not b.first_agent:
                return f"Alternating({a.period}, {a.first_agent_num_rounds}, {one}, {two})"
        # JSON is written with sorted names, and must describe the same.
        return f"Custom({', '.join(f'{name}: {each.update_schedule!r}' for name, each in sorted(self.items()))})"

    def to_dict(self) -> JsonObject:
        """Returns plain mappings; `make_agents` reads them."""
        agents = {name: {**each.to_dict(), "is_random": each.is_random} for name, each in self.items()}
        return {TYPE_KEY: type(self).__name__, "agents_update_repr": self.agents_update_repr, **agents}


def make_agents(given: object, agent_class: type[AgentParameters]) -> AgentsParameters:
    """Makes the parameters of all agents of a mapping, by hand or by `to_dict`; the mapping stays as it is."""
    if given is None:
        return AgentsParameters({DEFAULT_AGENT: agent_class()})
    if not isinstance(given, Mapping):
        raise SettingsError(f"agents: found {given!r}, expected a mapping of names to parameters", code="E0205")
    made: dict[str, AgentParameters] = {}
    for name, value in given.items():
        if name in (TYPE_KEY, "agents_update_repr"):
            continue
        if isinstance(value, AgentParameters):
            made[name] = value
        elif isinstance(value, Mapping):
            named = value.get(TYPE_KEY)
            chosen = RandomAgentParameters if value.get("is_random") else agent_class
            if named is not None:
                chosen = get_parameter_class(str(named))  # type: ignore[assignment]
            if not issubclass(chosen, AgentParameters):
                raise SettingsError(f'agents.{name}: "{named}" is no class of agent parameters', code="E0205")
            made[name] = chosen.from_dict({key: item for key, item in value.items() if key != "is_random"})
        else:
            raise SettingsError(f"agents.{name}: found {value!r}, expected parameters or a mapping", code="E0205")
    for name, agent in made.items():
        if not isinstance(agent, agent_class | RandomAgentParameters):
            raise SettingsError(
                f"agents.{name}: found {type(agent).__name__}, and agents of this scenario have "
                f"{agent_class.__name__} or RandomAgentParameters",
                code="E0205",
            )
    return AgentsParameters(made)


def check_names(agents: AgentsParameters, names: Sequence[str]) -> None:
    """Refuses agents that the protocol has not, and agents of the protocol without parameters."""
    for name in agents:
        if name not in names and name != DEFAULT_AGENT:
            near = get_close_matches(name, names, n=1)
            hint = f'did you mean "{near[0]}"?' if near else f"expected some of: {', '.join(names)}"
            raise SettingsError(f'HyperParameters.agents: the protocol has no agent "{name}"; {hint}', code="E0205")
    for name in names:
        if name not in agents:
            raise SettingsError(
                f'HyperParameters.agents: found no parameters of "{name}"; add them, or {DEFAULT_AGENT} for all that '
                "are not named",
                code="E0205",
            )
