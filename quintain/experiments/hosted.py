"""Experiments in a run file: a trainer with a loop of its own, as the function of a hosted loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.run import build_scenario_instance, build_trainer
from quintain.experiments.trainer import RunStatLogger

if TYPE_CHECKING:
    from quintain.trainers.hosted import HostedLoop


def train(host: HostedLoop, hyper_params: dict[str, object]) -> None:
    """Trains an experiment; `experiment.loop` is {type: hosted, function: "quintain.experiments.hosted:train", ...}."""
    parameters = HyperParameters.from_dict(hyper_params)
    settings = ExperimentSettings(stat_logger=RunStatLogger())
    trainer = build_trainer(parameters, build_scenario_instance(parameters, settings), settings)
    trainer.host = host
    trainer.train()
