"""The main function of a process that trains one run of a sweep."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from quintain.runs import assemble as assemble  # with torch, so that children are forked with everything in memory
from quintain.runs import launch
from quintain.runs.ranks.losses import train_through_losses
from quintain.runs.sent_parts import adopt_parts
from quintain.services.processes.child_environment import take_code_paths
from quintain.services.processes.messages import Assembler, receive, send_text
from quintain.services.reporting.crash_reports import as_quintain_error, crash_reports
from quintain.services.reporting.redaction import redact
from quintain.settings.tree import RunFile
from quintain.typing import JsonObject


def train_run(descriptor: int) -> None:
    """Starts or resumes the run that the first message names, trains it, and reports how it ended."""
    channel = socket.socket(fileno=descriptor)
    message, _ = receive(channel, Assembler())
    words = json.loads(message)
    take_code_paths(words)
    try:
        adopt_parts(words["parts"])
        runs_dir, run_id = Path(words["runs_dir"]), words["run_id"]
        run_file = RunFile.load(words["planned"], is_complete=True)
        if (runs_dir / run_id).exists():
            launched = launch.resume(runs_dir, run_id, run_file=run_file)
        else:
            launched = launch.start(run_file, runs_dir=runs_dir, run_id=run_id)
        with crash_reports(launched.directory.write_crash):
            launched, summary = train_through_losses(launched)
        report: JsonObject = {"state": summary.state, "exit_code": launched.run.exit_code}
    except Exception as error:
        shown = as_quintain_error(error)
        sys.stderr.write("\n".join([*shown.lines(), ""]))
        line = f"error[{shown.code}]: {' '.join(shown.message.split())}"
        report = {"state": "failed", "exit_code": shown.exit_code, "line": redact(line)}
    send_text(channel, json.dumps(report).encode())
