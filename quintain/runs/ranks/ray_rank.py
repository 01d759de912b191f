"""One rank of a run under Ray Train: rank 0 starts or resumes the run, the others follow; all say how they end.

A worker of Ray Train finds the variables that torchrun sets, so it is a rank like any other. Its console and its
signals are the driver's.
"""

from __future__ import annotations

import socket
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from quintain.core.process_group import GlooGroup
from quintain.errors import ServiceError
from quintain.placements.remote_errors import error_to_json
from quintain.placements.torchrun import place_in_torchrun
from quintain.runs import launch
from quintain.runs.assemble import Slots
from quintain.runs.ranks.follow import follow
from quintain.runs.ranks.losses import train_and_close
from quintain.runs.sent_parts import adopt_parts
from quintain.services.reporting.crash_reports import as_quintain_error, crash_reports
from quintain.services.reporting.redaction import redact
from quintain.settings.tree import RunFile

if TYPE_CHECKING:
    from quintain.placements.ray.mailbox import Desk
    from quintain.typing import JsonObject


def take_part(words: JsonObject, slots: Slots | None, desk: Desk) -> None:
    """Trains as one rank of the run that the driver describes."""
    try:
        adopt_parts(words["parts"])
        place = place_in_torchrun()
        if desk.rank == 0:
            _lead(words, slots, desk)
        elif place is not None:
            follow(GlooGroup(*place), slots)
    except Exception as error:
        trace = redact("".join(traceback.format_exception(error)))
        desk.post({"failed": error_to_json(as_quintain_error(error), trace)}, waits=True)
        raise


def _lead(words: JsonObject, slots: Slots | None, desk: Desk) -> None:
    shown, runs_dir = Path(words["shown"]), Path(words["runs_dir"])
    # As the user wrote it, where this worker has the driver's working directory.
    runs_dir = shown if shown.absolute() == runs_dir else runs_dir
    require_reachable(runs_dir, words["probe"])
    launched = _launched(words, runs_dir, slots, desk)
    run = launched.run
    run.commands.continued_by = words["continued_by"] or run.commands.continued_by
    desk.saved = lambda: None if run.last is None else run.last.name
    desk.post({"began": run.last is not None})
    for code, text in words["warnings"]:
        run.warn(launched.trainer, code, text.format(step=launched.trainer.progress.env_steps))
    for note in words["notes"]:
        run.writer.note(note)
    with crash_reports(launched.directory.write_crash):
        summary = train_and_close(launched)
    digest = None if run.last is None else run.last.digest
    desk.post({"ended": {"summary": asdict(summary), "digest": digest, "exit_code": run.exit_code}}, waits=True)


def _launched(words: JsonObject, runs_dir: Path, slots: Slots | None, desk: Desk) -> launch.Launched:
    run_file = None if words["settings"] is None else RunFile.from_mapping(words["settings"])
    output = {"stream": desk, "quiet": words["quiet"], "slots": slots}
    if words["resumes"] is not None:
        return launch.resume(
            runs_dir, words["resumes"], words["overrides"], allow=words["allow"], run_file=run_file, **output
        )
    assert run_file is not None, "a new run has settings"
    weights = None if words["initialize_from"] is None else Path(words["initialize_from"])
    return launch.start(
        run_file, runs_dir=runs_dir, run_id=words["run_id"], force=words["force"], initialize_from=weights, **output
    )


def require_reachable(runs_dir: Path, probe: str) -> None:
    """Takes away the file that the driver has left in the folder of runs; refuses a folder in which there is none."""
    try:
        (runs_dir / probe).unlink()
    except OSError as error:
        raise ServiceError(
            f"rank 0 is on node {socket.gethostname()}, which cannot write to the driver's {runs_dir}: it writes the "
            f"run directory, and Ray chooses its node. Set --runs-dir to storage that all nodes share",
            code="E0549",
        ) from error
