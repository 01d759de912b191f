"""Draws the terminal at two widths from the rows of a real run: `python docs/pictures/make_terminal.py runs/RUN`."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from quintain.core.versions import quintain_version
from quintain.runs.output import CommandHints, env_name
from quintain.services.files.run_directory import RunDirectory
from quintain.services.reporting.console_layout import render_snapshot
from quintain.services.reporting.metrics_file import read_rows
from quintain.services.reporting.writers import RunHeader, RunSummary
from quintain.settings.tree import RunFile

PICTURES = {"terminal.svg": 80, "terminal-wide.svg": 140}
"""Columns by file."""
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def main(run_path: str) -> None:
    directory = RunDirectory.open_existing(Path(run_path))
    run_file = RunFile.load(directory.config)
    rows = list(read_rows(directory.metrics))
    algorithm = run_file.experiment.behaviors["default"].algorithm.type
    for name, columns in PICTURES.items():
        console = Console(
            record=True, width=columns, height=30, file=StringIO(), force_terminal=True, color_system="truecolor"
        )
        console.print(Text.assemble(("$ ", "dim"), f"quintain train {algorithm} {env_name(run_file)}"))
        console.print(
            render_snapshot(
                [(int(row["step"]), row) for row in rows],
                header(run_file, directory, algorithm),
                summary(rows, directory, run_file),
            ),
            soft_wrap=True,
        )
        svg = own_fonts(console.export_svg(title="quintain"))
        Path(__file__).with_name(name).write_text(svg, encoding="utf-8")


def header(run_file: RunFile, directory: RunDirectory, algorithm: str) -> RunHeader:
    return RunHeader(
        version=quintain_version(),
        algorithm=algorithm,
        env=env_name(run_file),
        num_lanes=run_file.experiment.env.num_lanes,
        device=run_file.run.device,
        cores=run_file.run.threads,
        seed=run_file.experiment.seed,
        run_directory=f"runs/{directory.run_id}",
        budget_env_steps=run_file.experiment.budget.env_steps,
    )


def summary(rows: list[dict[str, float]], directory: RunDirectory, run_file: RunFile) -> RunSummary:
    evaluations = [(row["eval/mean_reward"], int(row["step"])) for row in rows if "eval/mean_reward" in row]
    best, best_step = max(evaluations)
    evaluation = next(e for e in run_file.experiment.behaviors["default"].events if e.type == "evaluate")
    status = json.loads((directory.path / "status.json").read_text())
    # The hints name the run as a user in its folder would.
    hints = CommandHints(RunDirectory(directory.path, Path("runs") / directory.run_id), run_file)
    return RunSummary(
        state=status["state"],
        seconds=rows[-1]["time/total_seconds"],
        env_steps=int(rows[-1]["step"]),
        best_eval=best,
        best_step=best_step,
        num_eval_episodes=evaluation.num_episodes,
        last_checkpoint=status["checkpoint"],
        next_commands=hints.after(status["state"], run_file.budget),
    )


def own_fonts(svg: str) -> str:
    """Uses the reader's own fonts: a picture must not fetch anything."""
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"font-family: ?[^;]+;", f"font-family: {FONTS};", svg)


if __name__ == "__main__":
    main(sys.argv[1])
