"""Shows the progress of a run: a live display on a terminal, an occasional line elsewhere.

Draws only when a row arrives and starts no thread, so it cannot disturb a fork or outlive the run.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleRenderable
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from quintain.services.reporting.console_layout import ClosingLines, HeaderLines, LiveBlock, PlainLine, outside_text
from quintain.services.reporting.console_view import RunView
from quintain.services.reporting.lost_reader import has_lost_its_reader, silence
from quintain.services.reporting.settings import ConsoleSettings
from quintain.services.reporting.writers import RunHeader, RunSummary, WriterComplaint

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
        # A live display makes sense on a terminal that a person looks at.
        self._is_live = stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("CI")
        self._console = _StreamConsole(
            file=stream,
            width=None if self._is_live else LOG_WIDTH,
            force_terminal=self._is_live,
            markup=False,
            highlight=False,
            emoji=False,
        )
        self._stream = stream
        self._display: _Display | None = None

    def open(self, header: RunHeader) -> None:
        with self._complaining_of_lost_readers():
            self._console.print(HeaderLines(header))
            if self._is_live:
                self._display = _LiveDisplay(self._console, RunView(header), self._clock)
            else:
                self._display = _LogDisplay(self._console, RunView(header), self._clock, self._settings.every_seconds)

    def write(self, step: int, row: Mapping[str, float]) -> None:
        with self._complaining_of_lost_readers():
            self._opened().add(step, row)

    def note(self, text: str) -> None:
        """Prints a line; allowed at any time."""
        style = "yellow" if text.startswith("warning") else "dim"
        with self._complaining_of_lost_readers():
            self._console.print(Text(outside_text(text, self._console.encoding), style, overflow="fold"))

    def close(self, summary: RunSummary) -> None:
        with self._complaining_of_lost_readers():
            self._opened().finish()
            self._console.print(ClosingLines(summary), soft_wrap=True)

    @contextmanager
    def _complaining_of_lost_readers(self) -> Iterator[None]:
        """Leaves the console out of the run if its pipe or terminal was closed; training goes on."""
        try:
            yield
        except OSError as error:
            if not has_lost_its_reader(self._stream):
                raise
            silence(self._stream)
            if self._display is not None:
                # Gives standard output and error back, which a live display had replaced.
                self._display.finish()
            raise WriterComplaint(
                "warning[W0811]: the reader of the console has gone; the run goes on without it (Ctrl-C saves and "
                "stops), and metrics stay in metrics.jsonl",
                is_final=True,
                to_stderr=True,
            ) from error

    def _opened(self) -> _Display:
        assert self._display is not None, "open(header) comes first"
        return self._display


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
        self._live = _ResizableLive(LiveBlock(view), console)

    def draw(self) -> None:
        # From the first row on: a run that cannot begin leaves no half-drawn block and no hidden cursor.
        if not self._live.is_started:
            self._live.start()
        self._live.refresh()

    def finish(self) -> None:
        super().finish()
        self._live.stop()


class _ResizableLive(Live):
    """A live display that finds the begin of its last drawing after the terminal was made narrower.

    Terminals wrap lines that have become too long, so that the drawing takes more rows than when it was made.
    """

    def __init__(self, block: LiveBlock, console: Console) -> None:
        super().__init__(block, console=console, auto_refresh=False)
        self._block = block

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        width = max(1, self.console.width)
        num_wrapped = sum(max(0, length - 1) // width for length in self._block.line_lengths)
        erase, up = (ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1)
        wrapped = [Control(ControlType.CARRIAGE_RETURN, *[erase, up] * num_wrapped)] if num_wrapped else []
        # To the left, where the ^C that a terminal echoes does not begin a new row.
        return [*wrapped, *super().process_renderables(renderables), Control(ControlType.CARRIAGE_RETURN)]
