"""Shows the progress of a run: a live display on a terminal, an occasional line elsewhere.

Draws only when a row arrives and starts no thread, so it cannot disturb a fork or outlive the run.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from quintain.services.reporting.console_layout import ClosingLines, HeaderLines, LiveBlock, PlainLine, outside_text
from quintain.services.reporting.console_view import RunView
from quintain.services.reporting.settings import ConsoleSettings
from quintain.services.reporting.writers import RunHeader, RunSummary

MIN_REFRESH_SECONDS = 1 / 8
LOG_WIDTH = 10_000
"""A log has no width, so its lines are never broken."""


class ConsoleWriter:
    """Writes the header, the progress and the end of a run to a stream."""

    def __init__(
        self,
        settings: ConsoleSettings,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        stream = sys.stdout if stream is None else stream
        self._settings = settings
        self._clock = clock
        self._is_live = is_interactive(stream)
        self._console = _StreamConsole(
            file=stream,
            width=None if self._is_live else LOG_WIDTH,
            force_terminal=self._is_live,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._display: _Display | None = None

    def open(self, header: RunHeader) -> None:
        self._console.print(HeaderLines(header))
        if self._is_live:
            self._display = _LiveDisplay(self._console, RunView(header), self._clock)
        else:
            self._display = _LogDisplay(self._console, RunView(header), self._clock, self._settings.every_seconds)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        self._opened().add(step, row)

    def note(self, text: str) -> None:
        """Prints a line; allowed at any time."""
        style = "yellow" if text.startswith("warning") else "dim"
        self._console.print(Text(outside_text(text, self._console.encoding), style, overflow="fold"))

    def close(self, summary: RunSummary) -> None:
        self._opened().finish()
        self._console.print(ClosingLines(summary), soft_wrap=True)

    def _opened(self) -> _Display:
        assert self._display is not None, "open(header) comes first"
        return self._display


def is_interactive(stream: TextIO) -> bool:
    """Whether a live display makes sense on this stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


class _StreamConsole(Console):
    """Raises an error when the reader has gone, where rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError("the reader of the console output has gone")


class _Display:
    """Draws the view when a row arrives, at most once in so many seconds, and once more at the end."""

    def __init__(self, console: Console, view: RunView, clock: Callable[[], float], every_seconds: float) -> None:
        self.console = console
        self.view = view
        self._clock = clock
        self._every_seconds = every_seconds
        self._drawn_at = -math.inf
        self._has_news = False

    def add(self, step: int, row: Mapping[str, float]) -> None:
        now = self._clock()
        self.view.add(step, row, now)
        self._has_news = True
        if now - self._drawn_at >= self._every_seconds:
            self._drawn_at = now
            self._draw_news()

    def finish(self) -> None:
        if self._has_news:
            self._draw_news()

    def _draw_news(self) -> None:
        self.draw()
        self._has_news = False

    def draw(self) -> None:
        raise NotImplementedError


class _LogDisplay(_Display):
    """Draws by appending a line."""

    def draw(self) -> None:
        self.console.print(PlainLine(self.view))


class _LiveDisplay(_Display):
    """Draws over the previous output."""

    def __init__(self, console: Console, view: RunView, clock: Callable[[], float]) -> None:
        super().__init__(console, view, clock, MIN_REFRESH_SECONDS)
        self._live = Live(LiveBlock(view), console=console, auto_refresh=False)
        self._live.start(refresh=True)

    def draw(self) -> None:
        self._live.refresh()

    def finish(self) -> None:
        super().finish()
        self._live.stop()
