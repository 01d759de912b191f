"""Writes rows as TensorBoard scalars: in the run's `tensorboard/` folder, or through a user's SummaryWriter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quintain.core.extras import require_extra
from quintain.services.reporting.settings import TensorBoardSettings
from quintain.services.reporting.writers import RunHeader, RunSummary

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

FOLDER = "tensorboard"
SHOWN_METRICS = ("rollout/ep_rew_mean", "eval/mean_reward")
"""Metrics in the table of hyper-parameters."""


class TakesScalars(Protocol):
    """The interface of a user's summary writer: TensorBoard's, or another with this method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> object: ...


class SummaryRows:
    """Writes each row to an object with `add_scalar(name, value, step)`; the caller closes it."""

    def __init__(self, summary_writer: TakesScalars) -> None:
        self.summary_writer = summary_writer

    def open(self, header: RunHeader) -> None:
        """Does nothing."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        write_row(self.summary_writer, step, row)

    def note(self, text: str) -> None:
        """Does nothing: notes belong to the console."""

    def close(self, summary: RunSummary) -> None:
        if hasattr(self.summary_writer, "flush"):
            self.summary_writer.flush()


class TensorBoardWriter:
    """Writes event files for `tensorboard --logdir`; a resumed run continues the same curves."""

    def __init__(self, settings: TensorBoardSettings) -> None:
        require_extra("run.writers: tensorboard", "tensorboard")
        self.settings = settings
        self._header: RunHeader | None = None
        self._summary_writer: SummaryWriter | None = None

    def open(self, header: RunHeader) -> None:
        self._header = header

    def write(self, step: int, row: Mapping[str, float]) -> None:
        # Only now: before the first row the run's directory may not be there, and must not be made by a writer.
        if self._summary_writer is None:
            self._summary_writer = self._begin(step)
        write_row(self._summary_writer, step, row)
        # Here, in a background thread, it costs nobody anything, and a kill loses nothing that was written.
        self._summary_writer.flush()

    def note(self, text: str) -> None:
        """Does nothing: notes belong to the console."""

    def close(self, summary: RunSummary) -> None:
        if self._summary_writer is not None:
            self._summary_writer.close()
            self._summary_writer = None

    def _begin(self, first_step: int) -> SummaryWriter:
        from torch.utils.tensorboard.summary import hparams
        from torch.utils.tensorboard.writer import SummaryWriter

        assert self._header is not None, "a row came before the header"
        folder = Path(self._header.run_directory or ".") / FOLDER
        is_new = not folder.is_dir()
        # What an interrupted process wrote from this step on is written again; readers drop the old points.
        writer = SummaryWriter(str(folder), purge_step=first_step)
        if is_new:
            files: Any = writer.file_writer  # without types
            metrics = dict.fromkeys(SHOWN_METRICS)
            for summary in hparams(dict(self._header.hyper_parameters), metrics):  # type: ignore[no-untyped-call]  # torch's
                files.add_summary(summary)
            # The table of the other page compares runs; this one is read.
            writer.add_text("Hyperparameters", _as_table(self._header.hyper_parameters), 0)
        return writer


def write_row(summary_writer: TakesScalars, step: int, row: Mapping[str, float]) -> None:
    """Adds each metric of a row under its name."""
    for name, value in row.items():
        summary_writer.add_scalar(name, value, step)


def _as_table(values: Mapping[str, bool | int | float | str]) -> str:
    """Returns a Markdown table, which TensorBoard renders."""
    rows = [f"| {name} | {str(value).replace('|', '/')} |" for name, value in values.items()]
    return "\n".join(["| setting | value |", "|---|---|", *rows])
