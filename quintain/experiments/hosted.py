"""Trainers with a loop of their own, as the function of a hosted loop: `quintain.experiments.hosted:train`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.experiments.experiment_settings import ExperimentSettings
from quintain.experiments.factory import build_scenario_instance, build_trainer
from quintain.experiments.hyper_parameters import HyperParameters
from quintain.experiments.trainer import RunStatLogger

if TYPE_CHECKING:
    from quintain.trainers.hosted import HostedLoop


def train(host: HostedLoop, hyper_params: dict[str, object], settings: ExperimentSettings | None = None) -> None:
    """Builds an experiment and trains it; each of the trainer's iterations ends with a tick of the run."""
    parameters = HyperParameters.from_dict(hyper_params)
    if settings is None:
        settings = ExperimentSettings(stat_logger=RunStatLogger(), output_dir=str(host.session.runs_dir))
    trainer = build_trainer(parameters, build_scenario_instance(parameters, settings), settings)
    trainer.host, logger = host, settings.stat_logger
    if isinstance(logger, RunStatLogger):
        logger.on_step = trainer.end_logged_step
    trainer.train()
    trainer.count_logged_steps()
    trainer.keep_parts()
    if host.progress.iteration == 0 or (isinstance(logger, RunStatLogger) and logger.waiting):
        trainer.end_iteration()
