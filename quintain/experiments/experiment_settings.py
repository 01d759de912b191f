"""`ExperimentSettings`: what does not change results, such as the device, the run's name and how often to save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from quintain.experiments.parameters_base import ParametersMeta, Value


class StatLogger:
    """Receives statistics by name."""

    def log(self, stats: dict[str, float], step: int | None = None) -> None:
        """Takes the statistics of one iteration."""


class DummyStatLogger(StatLogger):
    """Drops all statistics; those of a run are in its metrics.jsonl."""


@dataclass(eq=False)
class ExperimentSettings(metaclass=ParametersMeta):
    """Settings of one run of an experiment. They decide no results."""

    device: str = "cpu"
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

    def __deepcopy__(self, memo: dict[int, object]) -> ExperimentSettings:
        return self
