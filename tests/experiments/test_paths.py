"""Every name of nip that exists here is found at nip's own path below `quintain.compat`."""

from __future__ import annotations

import importlib

import pytest

PATHS = {
    "nip": ["HyperParameters", "ExperimentSettings"],
    "nip.parameters": ["HyperParameters", "AgentsParameters", "LrFactors", "SubParameters", "register_parameter_class"],
    "nip.parameters.types": ["TrainerType", "InteractionProtocolType", "ScenarioType", "GuessType", "PpoLossType"],
    "nip.parameters.parameters_base": ["SubParameters", "ParameterValue", "register_parameter_class"],
    "nip.parameters.trainers": ["RlTrainerParameters", "CommonPpoParameters", "TextRlParameters"],
    "nip.parameters.agents": ["AgentsParameters", "RandomAgentParameters", "AlternatingPeriodicUpdateSchedule"],
    "nip.parameters.protocol": ["CommonProtocolParameters", "NipProtocolParameters"],
    "nip.experiment_settings": ["ExperimentSettings"],
    "nip.run": ["run_experiment", "prepare_experiment", "PreparedExperimentInfo"],
    "nip.factory": ["build_scenario_instance"],
    "nip.scenario_instance": ["ScenarioInstance"],
    "nip.trainers.trainer_base": [
        "Trainer",
        "TensorDictTrainer",
        "attach_progress_bar",
        "IterationContext",
        "CheckPointNotFoundError",
    ],
    "nip.trainers.solo_agent": ["SoloAgentTrainer"],
    "nip.stat_logger": ["StatLogger", "DummyStatLogger", "WandbStatLogger"],
    "nip.scenario_base.agents": ["Agent", "PureTextSharedModelGroup"],
    "nip.trainers.rl_tensordict_base": ["TensorDictRlTrainer"],
    "nip.rl_objectives": ["Objective", "ClipPPOLossImproved", "KLPENPPOLossImproved", "ReinforceLossImproved"],
    "nip.parameters.version": ["convert_hyper_param_dict", "register_conversion_function"],
    "nip.trainers.vanilla_ppo": ["VanillaPpoTrainer"],
    "nip.trainers.reinforce": ["ReinforceTrainer"],
    "nip.trainers.registry": ["build_trainer", "register_trainer", "get_trainer_class", "TRAINER_REGISTRY"],
    "nip.utils.experiments": ["SequentialHyperparameterExperiment", "MultiprocessHyperparameterExperiment"],
    "nip.protocols": ["ProtocolHandler", "register_protocol_handler", "DeterministicSingleVerifierProtocolHandler"],
}


@pytest.mark.parametrize("path", PATHS)
def test_names_are_at_their_paths(path: str) -> None:
    module = importlib.import_module(f"quintain.compat.{path}")
    for name in PATHS[path]:
        home = getattr(module, name)
        assert home is getattr(importlib.import_module("quintain.experiments"), name, home)
    assert set(PATHS[path]) <= set(module.__all__)
