"""nip's sweeps of experiments, on `quintain sweep`: every combination is a run of it, in a process of its own.

The experiment function is called in that process; it usually ends with `run_experiment(..., run_id=arguments.run_id)`,
which goes on where a run of this name was killed. Combinations that are finished are not repeated.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from quintain.core import registry
from quintain.errors import SettingsError
from quintain.runs.sweeps.start import DEFAULT_SWEEPS_DIR, sweep
from quintain.services.files.run_names import check_run_id

if TYPE_CHECKING:
    from quintain.runs.sweeps.table import SweepTable
    from quintain.trainers.hosted import HostedLoop
    from quintain.typing import Keyword

FLAGS_VARIABLE = "QUINTAIN_EXPERIMENT_FLAGS"
"""The environment variable that gives the processes those flags of the command line that decide no results."""


class QuietBar:
    """A progress bar that shows nothing, with tqdm's calls: a combination's output goes to a log."""

    def __init__(self, iterable: Iterable[Keyword] = (), *, total: int | None = None, **_: Keyword) -> None:
        self.iterable, self.total, self.n = iterable, total, 0

    def __iter__(self) -> Iterator[Keyword]:
        return iter(self.iterable)

    def set_description(self, text: str) -> None:
        """Does nothing."""

    def update(self, count: int = 1) -> None:
        """Counts."""
        self.n += count

    def close(self) -> None:
        """Does nothing."""


@dataclass(frozen=True)
class ExperimentFunctionArguments:
    """The arguments of an experiment function: one combination of the grid, and the flags of the command line."""

    combo: dict[str, Keyword]
    run_id: str
    combo_index: int
    cmd_args: Namespace
    common_run_name: str
    child_logger_adapter: logging.LoggerAdapter[logging.Logger]
    """Writes to the log of the combination, at the level of -d, -v or neither."""
    tqdm_func: Callable[..., QuietBar] = QuietBar
    global_tqdm_step_fn: Callable[[], None] = lambda: None

    @property
    def log_level(self) -> int:
        """DEBUG with -d, INFO with -v, else WARNING."""
        is_debugging, is_verbose = (bool(getattr(self.cmd_args, name, False)) for name in ("debug", "verbose"))
        return logging.DEBUG if is_debugging else logging.INFO if is_verbose else logging.WARNING


def run_combination(
    host: HostedLoop,
    function: str,
    combo: dict[str, Keyword],
    run_id: str,
    combo_index: int,
    common_run_name: str,
    cmd_args: dict[str, Keyword],
) -> None:
    """Calls the experiment function for one combination: the function of a hosted loop."""
    experiment_fn = registry.import_part("experiment function", function)
    flags = Namespace(**{**cmd_args, **json.loads(os.environ.get(FLAGS_VARIABLE, "{}"))})
    logger = logging.getLogger(f"{__name__}.{run_id}")
    adapter = logging.LoggerAdapter(logger, {"combo_index": combo_index})
    arguments = ExperimentFunctionArguments(combo, run_id, combo_index, flags, common_run_name, adapter)
    logging.basicConfig(format=f"[%(asctime)s %(levelname)s] [{run_id}] %(message)s")
    logger.setLevel(arguments.log_level)
    found = experiment_fn(arguments)
    host.tick(metrics=found if isinstance(found, Mapping) else None)


class SequentialHyperparameterExperiment:
    """Runs an experiment function for every combination of a grid of parameters, one after the other.

    `run_id_fn(combo_index, cmd_args)` names the runs, and `run_preparer_fn(combo, cmd_args)` is called for each before
    the first starts. `parser` takes more flags. If the function returns metrics by name, `metric` may be one of them,
    as `train/NAME`, for the summary.
    """

    default_num_workers: ClassVar[int] = 1

    def __init__(
        self,
        param_grid: Mapping[str, Sequence[Keyword]],
        experiment_fn: Callable[[ExperimentFunctionArguments], object],
        run_id_fn: Callable[[int, Namespace], str] | None = None,
        run_preparer_fn: Callable[[dict[str, Keyword], Namespace], object] | None = None,
        experiment_name: str = "experiment",
        arg_parser_description: str = "Runs an experiment for every combination of a grid",
        default_wandb_project: str | None = None,
        *,
        allow_resuming_wandb_run: bool = True,
        add_run_infix_argument: bool = True,
        sweeps_dir: str | Path = DEFAULT_SWEEPS_DIR,
        metric: str = "time/iterations",
    ) -> None:
        self.metric, self.experiment_name, self.sweeps_dir = metric, experiment_name, sweeps_dir
        self.run_preparer_fn, self.allow_resuming_wandb_run = run_preparer_fn, allow_resuming_wandb_run
        self.run_id_fn = run_id_fn or (lambda index, _: f"{experiment_name.lower()}_{index}")
        self.function = importable_function(experiment_fn)
        if not param_grid or not all(param_grid.values()):
            raise SettingsError("param_grid has no combination; give every parameter a list of values", code="E0270")
        self.combinations = [
            dict(zip(param_grid, values, strict=True)) for values in itertools.product(*param_grid.values())
        ]
        self.parser = ArgumentParser(description=arg_parser_description)
        add = self.parser.add_argument
        add("-d", "--debug", action="store_true", help="log debug messages")
        add("-v", "--verbose", action="store_true", help="log more messages")
        add("-q", "--quiet", action="store_true", help="print no progress and no summary")
        add("--use-wandb", action="store_true", help="send rows to Weights & Biases")
        add("--wandb-project", default=default_wandb_project, help="project of the runs")
        add("--wandb-entity", default=None, help="user or team of the project")
        add("--tag", default="", help="label of the runs in Weights & Biases")
        add("--gpu-num", type=int, default=0, help="number of the GPU, from 0")
        add("--ignore-cache", action="store_true", help="make cached data anew")
        add("--num-skip", type=int, default=0, help="number of first combinations to leave out")
        self._add_flags()
        self.flags = [action.dest for action in self.parser._actions if action.dest != "help"]
        """Flags that decide no results, so that they may differ when a sweep goes on."""
        add("--no-pretrain", action="store_true", help="do not pre-train agents")
        if add_run_infix_argument:
            add("--run-infix", default="a", help="text in the middle of the runs' names")

    def _add_flags(self) -> None:
        """Adds the flags that say which combinations run, and how many at a time."""
        self.parser.add_argument("--combo-groups", type=int, default=1, help="number of groups of combinations")
        self.parser.add_argument("--combo-num", type=int, default=0, help="number of the group to run, from 0")

    def run(self, args: Sequence[str] | None = None) -> SweepTable:
        """Runs what is not finished, and returns one row for each combination; a failure does not stop the others.

        `args` are the words of the command line; None takes those of the script.
        """
        cmd_args = self.parser.parse_args(args)
        given = vars(cmd_args)
        run_ids = [check_run_id(self.run_id_fn(index, cmd_args)) for index in range(len(self.combinations))]
        groups, number = given.get("combo_groups", 1), given.get("combo_num", 0)
        if not 0 <= number < groups:
            raise SettingsError(
                f"--combo-num: found {number}, expected 0 to {groups - 1} (--combo-groups)", code="E0205"
            )
        chosen = [index for index in range(len(run_ids)) if index % groups == number][max(0, cmd_args.num_skip) :]
        if not chosen:
            raise SettingsError(f"--num-skip: found {cmd_args.num_skip}, which leaves no combination", code="E0205")
        if self.run_preparer_fn is not None:
            for index in chosen:
                self.run_preparer_fn(self.combinations[index], cmd_args)
        own = {name: value for name, value in given.items() if name not in self.flags}
        path = "experiment.loop.kwargs"
        grid: list[dict[str, Keyword]] = [
            {
                f"{path}.combo": self.combinations[index],
                f"{path}.run_id": run_ids[index],
                f"{path}.combo_index": index,
            }
            for index in chosen
        ]
        kwargs = {"function": self.function, "combo": {}, "run_id": "", "combo_index": 0, "cmd_args": own}
        kwargs["common_run_name"] = self.experiment_name
        loop = {"type": "hosted", "function": f"{__name__}:{run_combination.__name__}", "kwargs": kwargs}
        os.environ[FLAGS_VARIABLE] = json.dumps({name: given[name] for name in self.flags})
        try:
            table = sweep(
                {"experiment": {"loop": loop, "budget": {"updates": 1}}},
                grid,
                jobs=given.get("num_workers", self.default_num_workers),
                name=self.experiment_name,
                sweeps_dir=self.sweeps_dir,
                metric=self.metric,
                quiet=cmd_args.quiet,
            )
        finally:
            del os.environ[FLAGS_VARIABLE]
        if not cmd_args.quiet:
            self._tell_summary(table, run_ids)
        return table

    def _tell_summary(self, table: SweepTable, run_ids: Sequence[str]) -> None:
        """Prints how each combination ended; those of other groups are SKIPPED."""
        words = {"finished": "SUCCEEDED", "failed": "FAILED"}
        for index, (run_id, combo) in enumerate(zip(run_ids, self.combinations, strict=True)):
            state = next((run.state for run in table.runs if run_id in run.combination.values()), "")
            sys.stdout.write(f"{words.get(state, 'SKIPPED'):9}  {run_id}  combination {index}: {combo}\n")


class MultiprocessHyperparameterExperiment(SequentialHyperparameterExperiment):
    """Runs an experiment function for every combination of a grid of parameters, several at the same time."""

    default_num_workers = 2

    def _add_flags(self) -> None:
        add = self.parser.add_argument
        add("--num-workers", type=int, default=self.default_num_workers, help="combinations at the same time")
        add("--max-tasks-per-child", type=int, default=1, help="as in nip; every combination has its own process")


def importable_function(function: Callable[..., object]) -> str:
    """Returns module:name of a function; one of the main script is imported by the script's own name."""
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if spec is not None:
            module = str(spec.name)
        elif file is not None and Path(file).stem.isidentifier():
            # The script's folder is the first on the path, in this process and in those of the combinations.
            module = Path(file).stem
    if module == "__main__" or "<" in name or not name:
        raise SettingsError(
            f"experiment_fn is {module}:{name}, which another process cannot import; put it into a module or a script, "
            "outside of functions",
            code="E0283",
        )
    return f"{module}:{name}"
