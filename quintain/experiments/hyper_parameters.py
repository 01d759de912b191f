"""`HyperParameters`: everything that decides the results of an experiment. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self, TypeAlias

from pydantic import Field

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.experiments import names, trainer_parameters
from quintain.experiments.agents_parameters import AgentsParameters, check_names, make_agents
from quintain.experiments.migrate import PACKAGE_KEY, VERSION_KEY, convert_hyper_param_dict
from quintain.experiments.parameters_base import (
    CODE_KEY,
    BaseHyperParameters,
    Options,
    SubParameters,
    Value,
    declared_annotations,
    field_name,
    parameter_class,
    register_parameter_class,
    registered_classes,
)
from quintain.experiments.registry import build_protocol_handler
from quintain.experiments.rows import num_rows
from quintain.experiments.scenario_names import scenario_named, trainer_data_kind

Positive: TypeAlias = trainer_parameters.Positive


@register_parameter_class
@dataclass(eq=False)
class HyperParameters(BaseHyperParameters):
    """The description of one experiment. A registered `SubParameters` class is a field too: `MyParameters` is `my`."""

    scenario: str
    trainer: str
    dataset: str
    interaction_protocol: str = "nip"
    seed: Annotated[int, Field(ge=0)] = 6198
    functionalize_modules: bool = False
    pretrain_agents: bool = False
    test_size: Annotated[float, Field(ge=0, le=1)] = 0.2
    d_representation: Positive = 16
    message_size: Positive = 1
    include_linear_message_space: bool = False
    d_linear_message_space: Positive = 2
    agents: AgentsParameters | Options | None = None
    rl: trainer_parameters.RlTrainerParameters | Options | None = None
    ppo: trainer_parameters.CommonPpoParameters | Options | None = None
    vanilla_ppo: trainer_parameters.VanillaPpoParameters | Options | None = None
    spg: trainer_parameters.SpgParameters | Options | None = None
    reinforce: trainer_parameters.ReinforceParameters | Options | None = None
    solo_agent: trainer_parameters.SoloAgentParameters | Options | None = None
    text_rl: trainer_parameters.TextRlParameters | Options | None = None
    pure_text_ei: trainer_parameters.PureTextEiParameters | Options | None = None
    pure_text_malt: trainer_parameters.PureTextMaltParameters | Options | None = None
    image_classification: trainer_parameters.ImageClassificationParameters | Options | None = None
    code_validation: trainer_parameters.CodeValidationParameters | Options | None = None
    dataset_options: trainer_parameters.DatasetParameters | Options | None = None
    protocol_common: trainer_parameters.CommonProtocolParameters | Options | None = None
    nip_protocol: trainer_parameters.NipProtocolParameters | Options | None = None
    debate_protocol: trainer_parameters.DebateProtocolParameters | Options | None = None
    mnip_protocol: trainer_parameters.MnipProtocolParameters | Options | None = None
    zk_protocol: trainer_parameters.ZkProtocolParameters | Options | None = None
    message_regression: trainer_parameters.MessageRegressionParameters | Options | None = None
    base_run: trainer_parameters.BaseRunParameters | Options | None = None

    @classmethod
    def annotations_of(cls) -> Mapping[str, Value]:
        """Returns the annotation of every field, with those that users' registered classes add."""
        declared = dict(declared_annotations(cls))
        taken = {parameter_class(annotation) for annotation in declared.values()}
        for name, found in registered_classes().items():
            is_direct = issubclass(found, SubParameters) and found.__bases__ == (SubParameters,)
            if is_direct and found not in taken and found.__module__ not in OWN_MODULES:
                declared.setdefault(field_name(name), found | dict | None)
        return declared

    @classmethod
    def from_dict(cls, data: Mapping[str, object], *, ignore_extra_keys: bool = False) -> Self:
        """Makes the object that `to_dict` wrote, in this version or an older one; `data` stays as it is."""
        for place in data.get(CODE_KEY) or ():  # type: ignore[attr-defined]  # a list, or it is no text
            registry.import_part("class", str(place))
        if VERSION_KEY in data or PACKAGE_KEY in data:
            data = convert_hyper_param_dict(data)
        return super().from_dict(data, ignore_extra_keys=ignore_extra_keys)

    def __post_init__(self) -> None:
        names.ScenarioType.check(self.scenario, "HyperParameters.scenario")
        names.TrainerType.check(self.trainer, "HyperParameters.trainer")
        names.InteractionProtocolType.check(self.interaction_protocol, "HyperParameters.interaction_protocol")
        self.agents = make_agents(self.agents, scenario_named(self.scenario).agent_parameters)

    def check(self) -> None:
        """Refuses a trainer for another kind of data than the scenario's, and agents and rounds that do not fit."""
        wanted, found = trainer_data_kind(self.trainer), scenario_named(self.scenario).data_kind
        if wanted is not None and found != wanted:
            raise SettingsError(
                f'HyperParameters: trainer "{self.trainer}" works on {wanted}, scenario "{self.scenario}" has {found}; '
                "choose a trainer and a scenario of one kind",
                code="E0205",
            )
        base = self.get("base_run")
        if base.base_run_type == "rerun_tests":
            raise SettingsError(
                'HyperParameters.base_run.base_run_type: "rerun_tests" is not built; expected "parameters", with the '
                "tests that you want",
                code="E0276",
            )
        if base.base_run_type != "none" and base.run_id is None:
            raise SettingsError(
                f'HyperParameters.base_run.run_id: not set, and base_run_type is "{base.base_run_type}"; expected the '
                "name of a run",
                code="E0276",
            )
        for name, agent in (self.agents or {}).items():
            if agent.load_checkpoint_and_parameters and agent.checkpoint_run_id is None:
                raise SettingsError(
                    f"HyperParameters.agents.{name}.checkpoint_run_id: not set, expected the name of a run",
                    code="E0276",
                )
        for name in ("nip_protocol", "debate_protocol", "mnip_protocol"):
            rounds = self.get(name)
            if rounds.min_message_rounds > rounds.max_message_rounds:
                raise SettingsError(
                    f"HyperParameters.{name}.min_message_rounds: found {rounds.min_message_rounds}, "
                    f"expected at most max_message_rounds ({rounds.max_message_rounds})",
                    code="E0205",
                )
        protocol = build_protocol_handler(self)
        check_names(self.get("agents"), protocol.agent_names)
        if found == "tensors" and wanted == "tensors":
            num_rows(self, protocol)


OWN_MODULES = frozenset(
    f"quintain.experiments.{name}"
    for name in ("agents_parameters", "hyper_parameters", "trainer_parameters", "experiment_settings")
)
"""Modules whose classes are fields by declaration, or of agents."""
