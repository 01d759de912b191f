"""Destinations of the rows of a run. A writer only observes: if it fails, training continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from quintain.services.reporting.printable import escape_control_characters

if TYPE_CHECKING:
    from quintain.services.reporting.settings import NoWriterSettings


@dataclass(frozen=True)
class RunHeader:
    """Describes a run before it starts, as far as it is known before torch is imported."""

    version: str
    algorithm: str
    env: str
    num_lanes: int
    device: str
    cores: int
    seed: int
    run_directory: str | None
    budget_env_steps: int | None
    start_step: int = 0
    budget_updates: int | None = None
    start_updates: int = 0
    num_ranks: int = 1
    shown_directory: str | None = None
    """The run's directory as the user wrote it."""
    hyper_parameters: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    """Settings that describe the training and can be published."""
    forked_from: str | None = None
    """The run and checkpoint whose policies it started with."""
    behaviors: tuple[str, ...] = ()
    """Names of the behaviours, if there are several; their metrics begin with them."""
    history: Sequence[Mapping[str, float]] = ()
    """Rows of the run before this process, or some of them, each with its `step`."""


@dataclass(frozen=True)
class RunSummary:
    """Describes how a run ended and suggests the next commands."""

    state: Literal["finished", "stopped", "failed"]
    seconds: float
    env_steps: int
    updates: int | None = None
    """Where the budget counts them instead of environment steps."""
    best_eval: float | None = None
    best_step: int | None = None
    num_eval_episodes: int = 0
    last_checkpoint: str | None = None
    is_mid_update: bool = False
    """Whether it stopped between collecting steps and counting them; the checkpoint has them."""
    num_faults: int = 0
    """How often environments broke and were restarted."""
    next_commands: list[tuple[str, str]] = field(default_factory=list)
    """Commands, each with a comment on its purpose."""


class Writer(Protocol):
    """Receives a run's header once, then rows and notes, then its summary."""

    def open(self, header: RunHeader) -> None: ...
    def write(self, step: int, row: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, summary: RunSummary) -> None: ...


class NoWriter:
    """Writes nothing; in a list of writers it says that the default ones are left out."""

    def __init__(self, settings: NoWriterSettings) -> None:
        self.settings = settings

    def open(self, header: RunHeader) -> None:
        """Does nothing."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        """Does nothing."""

    def note(self, text: str) -> None:
        """Does nothing."""

    def close(self, summary: RunSummary) -> None:
        """Does nothing."""


class WriterComplaint(Exception):
    """A warning about a writer, passed to where it can be printed; after a final one the writer is removed."""

    def __init__(self, warning: str, *, is_final: bool, to_stderr: bool = False) -> None:
        """Makes one; `to_stderr` is for the writer that would show it."""
        super().__init__(warning)
        self.warning = warning
        self.is_final = is_final
        self.to_stderr = to_stderr


class WriterGroup:
    """Passes everything to each writer and removes one that keeps failing."""

    max_failures = 3

    def __init__(self, writers: Iterable[Writer], *, is_quiet: bool = False) -> None:
        self._active = list(writers)
        self._is_quiet = is_quiet
        self._num_failures: dict[int, int] = {}
        self._waiting: list[str] | None = None
        """Notes that come after the header."""
        self._is_kept = False
        """Whether rows go to the metrics file of a run directory, too."""

    def wait_for_header(self) -> None:
        """Lets notes follow the header of a run that is made long before it trains; warnings do not wait."""
        self._waiting = []

    def open(self, header: RunHeader) -> None:
        self._is_kept = header.run_directory is not None
        self._each(lambda writer: writer.open(header))
        notes, self._waiting = self._waiting or (), None
        for text in notes:
            self.note(text)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._each(lambda writer: writer.write(step, row))

    def note(self, text: str) -> None:
        if self._waiting is not None and not text.startswith("warning"):
            self._waiting.append(text)
        else:
            self._each(lambda writer: writer.note(text))

    def close(self, summary: RunSummary) -> None:
        # The first one, which is the console as a rule, last: it shows what is wrong with the others.
        self._each(lambda writer: writer.close(summary), self._active[::-1])

    def _each(self, call: Callable[[Writer], None], writers: Iterable[Writer] | None = None) -> None:
        for writer in list(self._active if writers is None else writers):
            try:
                call(writer)
            except WriterComplaint as complaint:
                if complaint.is_final and writer in self._active:
                    self._active.remove(writer)
                self._warn(complaint.warning, to_stderr=complaint.to_stderr)
            except Exception as error:  # a broken display must never cost a training run
                self._count_failure(writer, error)

    def _count_failure(self, writer: Writer, error: Exception) -> None:
        failures = self._num_failures.get(id(writer), 0) + 1
        self._num_failures[id(writer)] = failures
        if failures < self.max_failures or writer not in self._active:
            return
        self._active.remove(writer)
        warning = (
            f"warning[W0811]: {type(writer).__name__} disabled after {failures} failures "
            f"(the last: {type(error).__name__}: {error})"
        )
        if self._is_kept:
            warning += "; metrics stay in metrics.jsonl"
        self._warn(warning)

    def _warn(self, warning: str, *, to_stderr: bool = False) -> None:
        if self._active and not to_stderr:
            self.note(warning)
        elif not self._is_quiet:
            with suppress(OSError):  # it may be the same terminal, or on the same full disk
                sys.stderr.write(escape_control_characters(warning) + "\n")
