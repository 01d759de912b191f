"""Runs a training function of a user's own from Python, with a run directory, signals, checkpoints and resume."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.errors import SettingsError
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.services.files.run_directory import RunDirectory
from quintain.settings.sources import PYTHON
from quintain.settings.tree import RunFile
from quintain.trainers.hosted import HostedLoop

if TYPE_CHECKING:
    from quintain.services.reporting.writers import RunSummary
    from quintain.typing import Keyword, Keywords


def host(
    function: Callable[..., object],
    *,
    run_id: str | None = None,
    resume: bool = False,
    keep: Mapping[str, object] | None = None,
    kwargs: Keywords | None = None,
    runs_dir: str | Path = "runs",
    **settings: Keyword,
) -> RunSummary:
    """Trains by a function that calls `host.tick(env_steps, metrics)` at the end of each of its iterations.

    With `resume`, a run of this name goes on if there is one. `keep` names objects that exist before the function is
    called; it may hand over others with `host.keep`. Further keywords are settings, as on the command line.
    """
    if not callable(function):
        raise SettingsError(f"quintain.host takes a function, and this is {function!r}; import it first", code="E0208")
    # An object that can be called, such as a partial, has the name of its class.
    name = f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"
    loop = {"type": "hosted", "function": name, "kwargs": kwargs or {}}
    run_file = RunFile.from_mapping({"experiment": {"loop": loop}}, origin=PYTHON, changes=settings)
    slots = Slots(make_loop=partial(HostedLoop, function=function, keep=keep))
    place, is_there = Path(runs_dir), False
    if resume and run_id is not None:
        is_there = RunDirectory.plan(place, run_id, force=True).config.is_file()
    if is_there and run_id is not None:
        budget = [f"experiment.budget.{name}={json.dumps(value)}" for name, value in run_file.experiment.budget]
        launched = launch.resume(place, run_id, budget, run_file=run_file, slots=slots)
    else:
        launched = launch.start(run_file, runs_dir=place, run_id=run_id, slots=slots)
    try:
        return launched.trainer.train()
    finally:
        launched.trainer.close()
        launched.run.close()
