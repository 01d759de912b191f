"""Translates the hyper-parameters of an experiment with text models into the settings of one run. Imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.experiments.agents_parameters import ConstantUpdateSchedule, PureTextAgentParameters
from quintain.experiments.registry import TRAINER_REGISTRY, build_protocol_handler
from quintain.experiments.scenario_names import scenario_named
from quintain.text.providers.tiny_settings import BASE_MODEL
from quintain.text.settings import ExpertIterationSettings, ProtocolSettings, TextAgentSettings, TextRlSettings

if TYPE_CHECKING:
    from quintain.experiments.experiment_settings import ExperimentSettings
    from quintain.experiments.hyper_parameters import HyperParameters
    from quintain.typing import JsonObject

BUILT_IN = {"small_programs": "small_programs", "test": "ten_questions", "ten_questions": "ten_questions"}
"""Data sets that ship, by the names that `HyperParameters.dataset` has for them."""
SHIPPED_TRAINER = "pure_text_ei"
_UNUSED = {
    "functionalize_modules": False,
    "pretrain_agents": False,
    "include_linear_message_space": False,
    "protocol_common.zero_knowledge": False,
    "message_regression.enabled": False,
    "code_validation.apps_solution_number": 0,
    "code_validation.apps_exclude_flagged": True,
    "dataset_options.make_balanced": True,
    "text_rl.save_transcripts": True,
}
"""Hyper-parameters that text trainers cannot follow, with the one value that they accept."""


def run_settings(hyper_params: HyperParameters, settings: ExperimentSettings) -> JsonObject:
    """Returns the run file of an experiment with text models."""
    for address, only in _UNUSED.items():
        if (found := hyper_params.get(address)) != only:
            raise SettingsError(
                f"HyperParameters.{address} is {found!r}, and text trainers have only {only!r}; leave it out",
                code="E0291",
            )
    protocol, rl = build_protocol_handler(hyper_params), hyper_params.get("rl")
    kind = SHIPPED_TRAINER
    if hyper_params.trainer in TRAINER_REGISTRY:
        kind = registry.name_for("loop", TRAINER_REGISTRY[hyper_params.trainer])
    settings_class = registry.get("loop", kind).settings_class
    text_rl = hyper_params.get("text_rl").to_dict()
    agents = {name: _agent(hyper_params, name) for name in protocol.agent_names}
    steps = rl.steps_per_env_per_iteration or protocol.max_message_rounds
    betas = {hyper_params.get(f"agents.{name}").dpo_beta for name in protocol.agent_names} - {None}
    if len(betas) > 1:
        raise SettingsError(f"agents have different dpo_beta ({sorted(betas)}); expected one value", code="E0291")
    loop: JsonObject = {
        "type": kind,
        "scenario": _scenario(hyper_params),
        "agents": agents,
        "rl": {
            "rollouts_per_iteration": rl.rollouts_per_iteration or max(1, (rl.frames_per_batch or 0) // steps),
            "num_test_iterations": max(1, rl.num_test_iterations),
        },
        "text_rl": {name: text_rl[name] for name in TextRlSettings.model_fields},
        "jobs": {"beta": next(iter(betas), None)},
        "api": {"num_workers": max(1, settings.num_rollout_workers)},
        "hyper_params": hyper_params.to_dict(),
    }
    if hyper_params.interaction_protocol in get_args(ProtocolSettings.model_fields["name"].annotation):
        loop["protocol"] = _protocol(hyper_params)
    if issubclass(settings_class, ExpertIterationSettings):
        loop["pure_text_ei"] = _plain(hyper_params.get("pure_text_ei").to_dict())
    return {"experiment": {"seed": hyper_params.seed, "budget": {"updates": rl.num_iterations}, "loop": loop}}


def _scenario(hyper_params: HyperParameters) -> JsonObject:
    options = hyper_params.get("dataset_options")
    found: JsonObject = {
        "test_size": hyper_params.test_size,
        "max_train_size": options.max_train_size,
        "max_test_size": options.max_test_size,
    }
    own = scenario_named(hyper_params.scenario).target
    if own is not None:
        part = own if isinstance(own, str) else registry.name_for("text_scenario", own)
        return {"type": part, **found}
    name = hyper_params.dataset
    if name in BUILT_IN:
        return {**found, "built_in": BUILT_IN[name]}
    if not Path(name).is_file():
        raise SettingsError(
            f'HyperParameters.dataset: "{name}" is no file here, and nothing is downloaded. To run offline, take '
            f'dataset="small_programs" and model_provider="tiny"; a copy of the data set is read from JSON lines',
            code="E0290",
        )
    difficulty = hyper_params.get("code_validation.apps_difficulty")
    return {**found, "train_file": name, "apps_difficulty": difficulty}


def _agent(hyper_params: HyperParameters, name: str) -> JsonObject:
    given = hyper_params.get(f"agents.{name}")
    if not isinstance(given, PureTextAgentParameters):
        raise SettingsError(
            f"agents.{name}: found {type(given).__name__}, and an agent of text is a model; "
            f"expected CodeValidationAgentParameters, or leave it out",
            code="E0291",
        )
    if not isinstance(given.update_schedule, ConstantUpdateSchedule):
        raise SettingsError(
            f"agents.{name}.update_schedule: text models are fine-tuned in every iteration; expected "
            f"ConstantUpdateSchedule, or freeze_agent=True",
            code="E0291",
        )
    if given.repetition_penalty is not None:
        raise SettingsError(f"agents.{name}.repetition_penalty is of no provider here; leave it out", code="E0291")
    agent = {field: getattr(given, field) for field in TextAgentSettings.model_fields}
    is_default = agent["model_name"] == PureTextAgentParameters.model_name
    if agent["model_provider"] == "tiny" and is_default:
        agent["model_name"] = BASE_MODEL
    return agent


def _protocol(hyper_params: HyperParameters) -> JsonObject:
    name = hyper_params.interaction_protocol
    values = _plain(hyper_params.get("protocol_common").to_dict())
    if name in ("nip", "debate", "mnip"):
        values |= _plain(hyper_params.get(f"{name}_protocol").to_dict())
    known = ProtocolSettings.model_fields
    return {"name": name, **{field: value for field, value in values.items() if field in known}}


def _plain(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if not name.startswith("_")}
