"""Checks side effects of an environment: working directory, signal handlers, global RNGs, stdout."""

from __future__ import annotations

import io
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from quintain.envs.check.interface import Said

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None
"""The result of `signal.getsignal`."""
GeneratorState: TypeAlias = tuple[Any, ...]
"""The state of a global generator; only compared."""


@dataclass(frozen=True)
class Surroundings:
    """The state of the process that environments could change."""

    directory: str
    handlers: tuple[Handler, ...]
    generators: dict[str, GeneratorState]

    @classmethod
    def now(cls) -> Surroundings:
        handlers = tuple(signal.getsignal(number) for number in _SIGNALS)
        return cls(os.getcwd(), handlers, generator_states())

    def restore(self) -> None:
        """Restores working directory and signal handlers; draws from generators are not undone."""
        os.chdir(self.directory)
        for number, handler in zip(_SIGNALS, self.handlers, strict=True):
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


class LineCount(io.TextIOBase):
    """A text stream that counts lines and discards them."""

    def __init__(self) -> None:
        self.num_lines = 0

    def write(self, text: str) -> int:
        self.num_lines += text.count("\n")
        return len(text)


def generator_states() -> dict[str, GeneratorState]:
    """Returns the states of the global generators."""
    found = np.random.get_state(legacy=False)  # noqa: NPY002  # whether it is touched is the question
    assert isinstance(found, dict)
    return {"numpy": (found["state"]["pos"], found["state"]["key"].tobytes()), "Python": random.getstate()}


def find_side_effects(before: Surroundings, printed: LineCount) -> Iterator[Said]:
    """Checks that the process was left unchanged."""
    after = Surroundings.now()
    touched = [name for name, state in before.generators.items() if after.generators[name] != state]
    if touched:
        what = f"it draws from {touched[0]}'s global generator, which the seed of an episode does not reach"
        yield "warning", "process", what, "draw from self.np_random only"
    if after.directory != before.directory:
        what = f"it changes the working directory, to {after.directory}"
        yield "warning", "process", what, "open its files by their full paths, os.path.dirname(__file__) for example"
    taken = [number.name for number, a, b in zip(_SIGNALS, before.handlers, after.handlers, strict=True) if a != b]
    if taken:
        what = f"it takes over {' and '.join(taken)}, by which a run is told to save and stop"
        yield "warning", "process", what, "leave signals alone, or keep it in a worker: env_workers.num_workers=1"
    if printed.num_lines:
        what = f"it prints, {printed.num_lines} lines by now"
        yield "note", "process", what, "log instead, or keep it in workers, whose output goes to files of the run"
    if not touched and not taken and after.directory == before.directory:
        yield "ok", "process", "leaves directory, signals and global generators alone", ""
