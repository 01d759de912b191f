"""Where the rows of a run go. A writer only watches: whatever happens to it, training continues."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from quintain.services.printable import escape_control_characters


@dataclass(frozen=True)
class RunHeader:
    """Says what is about to run, with what is known before torch is imported."""

    version: str
    algorithm: str
    env: str
    num_lanes: int
    device: str
    cores: int
    seed: int
    run_directory: str | None
    budget_env_steps: int
    start_step: int = 0


@dataclass(frozen=True)
class RunSummary:
    """Says how a run ended and what the user may want to do next."""

    state: Literal["finished", "stopped", "failed"]
    seconds: float
    env_steps: int
    best_eval: float | None = None
    best_step: int | None = None
    num_eval_episodes: int = 0
    last_checkpoint: str | None = None
    next_commands: list[tuple[str, str]] = field(default_factory=list)
    """Commands, each with a comment that says what it is for."""


class Writer(Protocol):
    """Receives a run's header once, then rows and notes, then its summary."""

    def open(self, header: RunHeader) -> None: ...
    def write(self, step: int, row: Mapping[str, float]) -> None: ...
    def note(self, text: str) -> None: ...
    def close(self, summary: RunSummary) -> None: ...


class ScalarWriter:
    """Hands every number of a row to an object with `add_scalar(name, value, step)`, such as TensorBoard's.

    The object is its owner's to close; here it is only flushed.
    """

    def __init__(self, target: Any) -> None:
        self.target = target

    def open(self, header: RunHeader) -> None:
        """Shows nothing: there is no place for a header among scalars."""

    def write(self, step: int, row: Mapping[str, float]) -> None:
        for name, value in row.items():
            self.target.add_scalar(name, value, step)

    def note(self, text: str) -> None:
        """Shows nothing: notes are for people who watch."""

    def close(self, summary: RunSummary) -> None:
        if callable(getattr(self.target, "flush", None)):
            self.target.flush()


class WriterGroup:
    """Hands everything to each writer and gives up on one that keeps failing."""

    max_failures = 3

    def __init__(self, writers: Iterable[Writer]) -> None:
        self._active = list(writers)
        self._num_failures: dict[int, int] = {}

    def open(self, header: RunHeader) -> None:
        self._each(lambda writer: writer.open(header))

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._each(lambda writer: writer.write(step, row))

    def note(self, text: str) -> None:
        self._each(lambda writer: writer.note(text))

    def close(self, summary: RunSummary) -> None:
        self._each(lambda writer: writer.close(summary))

    def _each(self, call: Callable[[Writer], None]) -> None:
        for writer in list(self._active):
            try:
                call(writer)
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
            f"(the last: {type(error).__name__}: {error}); metrics stay in metrics.jsonl"
        )
        if self._active:
            self.note(warning)
        else:
            sys.stderr.write(escape_control_characters(warning) + "\n")
