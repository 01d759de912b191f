"""`ExperimentSettings`: what does not change results, such as the device, the run's name and how often to save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BeforeValidator, ValidationError

from quintain.errors import SettingsError
from quintain.experiments.parameters_base import ParametersMeta, Value
from quintain.settings.run import RunSettings


class StatLogger:
    """Receives statistics by name."""

    def log(self, stats: dict[str, float], step: int | None = None) -> None:
        """Takes the statistics of one iteration."""


class DummyStatLogger(StatLogger):
    """Drops all statistics; those of a run are in its metrics.jsonl."""


class WandbStatLogger(StatLogger):
    """Logs all statistics to a wandb run of one's own as well, without a name's change."""

    def __init__(self, wandb_run: Value) -> None:
        self.wandb_run = wandb_run

    def log(self, stats: dict[str, float], step: int | None = None) -> None:
        """Takes the statistics of one iteration."""
        self.wandb_run.log(stats, step=step)


UNPICKLABLE = ("wandb_run", "base_wandb_run", "stat_logger", "tqdm_func", "logger", "profiler", "global_tqdm_step_fn")
"""Fields that another process does not get: there they have their defaults."""


@dataclass(eq=False)
class ExperimentSettings(metaclass=ParametersMeta):
    """Settings of one run of an experiment. They decide no results."""

    device: Annotated[str, BeforeValidator(str)] = "cpu"
    """cpu, cuda, cuda:N or auto, as text or as a device of torch."""
    run_id: str | None = None
    output_dir: str = "runs"
    wandb_run: Value = None
    silence_wandb: bool = True
    base_wandb_run: Value = None
    stat_logger: StatLogger = field(default_factory=DummyStatLogger)
    tqdm_func: Callable[..., Value] | None = None
    logger: Value = None
    profiler: Value = None
    ignore_cache: bool = False
    num_rollout_samples: int = 10
    rollout_sample_period: int = 1000
    checkpoint_period: int = 1000
    num_dataset_threads: int = 8
    num_rollout_workers: int = 4
    pin_memory: bool = True
    dataset_on_device: bool = False
    enable_efficient_attention: bool = False
    global_tqdm_step_fn: Callable[[], object] | None = None
    pretrained_embeddings_batch_size: int = 256
    num_api_generation_timeouts: int = 100
    num_api_connection_errors: int = 10
    num_rate_limit_errors: int = 14
    do_not_load_checkpoint: bool = False
    test_run: bool = False

    def check(self) -> None:
        """Raises where values do not fit together."""
        if self.test_run and self.wandb_run is not None:
            raise ValueError("ExperimentSettings: a test run takes no wandb_run; set one of the two")
        try:
            RunSettings(device=self.device)
        except ValidationError:
            raise SettingsError(
                f'ExperimentSettings.device: found "{self.device}", expected cpu, cuda, cuda:N or auto', code="E0205"
            ) from None
        for name in ("checkpoint_period", "rollout_sample_period"):
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"ExperimentSettings.{name}: found {getattr(self, name)}, expected at least 1 iteration",
                    code="E0205",
                )

    def __getstate__(self) -> dict[str, Value]:
        return {name: value for name, value in vars(self).items() if name not in UNPICKLABLE}

    def __setstate__(self, state: dict[str, Value]) -> None:
        vars(self).update(vars(ExperimentSettings()) | state)

    def __deepcopy__(self, memo: dict[int, object]) -> ExperimentSettings:
        return self
