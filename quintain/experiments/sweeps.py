"""nip's sweeps of experiments, on `quintain sweep`: every combination is a run of it, in a process of its own.

The experiment function is called in that process; it usually ends with `run_experiment(..., run_id=arguments.run_id)`,
which goes on where a run of this name was killed. Combinations that are finished are not repeated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.runs.sweeps.start import DEFAULT_SWEEPS_DIR, sweep
from quintain.services.files.run_names import check_run_id

if TYPE_CHECKING:
    from quintain.runs.sweeps.table import SweepTable
    from quintain.trainers.hosted import HostedLoop
    from quintain.typing import Keyword


@dataclass(frozen=True)
class ExperimentFunctionArguments:
    """The arguments of an experiment function: one combination of the grid."""

    combo: dict[str, Keyword]
    run_id: str
    combo_index: int


def run_combination(host: HostedLoop, function: str, combo: dict[str, Keyword], run_id: str, combo_index: int) -> None:
    """Calls the experiment function for one combination: the function of a hosted loop."""
    experiment_fn = registry.import_part("experiment function", function)
    found = experiment_fn(ExperimentFunctionArguments(combo, run_id, combo_index))
    host.tick(metrics=found if isinstance(found, Mapping) else None)


class SequentialHyperparameterExperiment:
    """Runs an experiment function for every combination of a grid of parameters, one after the other.

    If the function returns metrics by name, `metric` may be one of them, as `train/NAME`, for the summary.
    """

    num_workers = 1

    def __init__(
        self,
        param_grid: Mapping[str, Sequence[Keyword]],
        experiment_fn: Callable[[ExperimentFunctionArguments], object],
        run_id_fn: Callable[[int], str] | None = None,
        experiment_name: str = "experiment",
        sweeps_dir: str | Path = DEFAULT_SWEEPS_DIR,
        metric: str = "time/iterations",
    ) -> None:
        self.metric = metric
        self.function = f"{experiment_fn.__module__}:{getattr(experiment_fn, '__qualname__', '')}"
        if experiment_fn.__module__ == "__main__" or "<" in self.function:
            raise SettingsError(
                f"experiment_fn is {self.function}, which another process cannot import; put it into a module",
                code="E0283",
            )
        if not param_grid or not all(param_grid.values()):
            raise SettingsError("param_grid has no combination; give every parameter a list of values", code="E0270")
        self.combinations = [
            dict(zip(param_grid, values, strict=True)) for values in itertools.product(*param_grid.values())
        ]
        name_of = run_id_fn or (lambda index: f"{experiment_name}_{index}")
        self.run_ids = [check_run_id(name_of(index)) for index in range(len(self.combinations))]
        self.experiment_name, self.sweeps_dir = experiment_name, sweeps_dir

    def run(self) -> SweepTable:
        """Runs what is not finished, and returns one row for each combination; a failure does not stop the others."""
        loop = {"type": "hosted", "function": f"{__name__}:{run_combination.__name__}"}
        kwargs = {"function": self.function, "combo": {}, "run_id": "", "combo_index": 0}
        path = "experiment.loop.kwargs"
        grid: list[dict[str, Keyword]] = [
            {f"{path}.combo": combo, f"{path}.run_id": run_id, f"{path}.combo_index": index}
            for index, (combo, run_id) in enumerate(zip(self.combinations, self.run_ids, strict=True))
        ]
        return sweep(
            {"experiment": {"loop": {**loop, "kwargs": kwargs}, "budget": {"updates": 1}}},
            grid,
            jobs=self.num_workers,
            name=self.experiment_name,
            sweeps_dir=self.sweeps_dir,
            metric=self.metric,
        )


class MultiprocessHyperparameterExperiment(SequentialHyperparameterExperiment):
    """Runs an experiment function for every combination of a grid of parameters, several at the same time."""

    def __init__(
        self,
        param_grid: Mapping[str, Sequence[Keyword]],
        experiment_fn: Callable[[ExperimentFunctionArguments], object],
        run_id_fn: Callable[[int], str] | None = None,
        experiment_name: str = "experiment",
        sweeps_dir: str | Path = DEFAULT_SWEEPS_DIR,
        metric: str = "time/iterations",
        default_num_workers: int = 2,
    ) -> None:
        super().__init__(param_grid, experiment_fn, run_id_fn, experiment_name, sweeps_dir, metric)
        self.num_workers = default_num_workers
