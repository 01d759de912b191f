"""Edits single values of a saved state, and says how a process ends that goes on from it."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from quintain.errors import QuintainError
from quintain.runs.restore import restore_rank
from quintain.services.checkpoints import state_files
from quintain.trainers.base import Trainer

SECONDS = 60
RUNS_ON = 0
Path = tuple[str | int, ...]


def saved(trainer: Trainer) -> dict[str, Any]:
    """Returns the state as a checkpoint gives it back."""
    state = state_files.with_bulk_inside(trainer.state_dict())
    return state_files.decode(state_files.encode(state, allow_nonfinite=state_files.SUBTREES))


def spoiled(state: Any, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Yields the places of values that may be counted or looked up with, and what a stranger may write there."""
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    for key, value in items:
        below = (*path, key)
        if isinstance(value, dict | list):
            yield from spoiled(value, below)
        elif isinstance(value, np.ndarray):
            yield from ((below, other) for other in _spoiled_arrays(value))
        else:
            yield from ((below, other) for other in _spoiled_scalars(value))


def chosen(state: Any) -> list[tuple[Path, object]]:
    """Returns one of these edits for every place, the same each time; what it is differs from state to state."""
    edits = list(spoiled(state))
    random.Random(len(edits)).shuffle(edits)
    return [*dict(edits).items()]


def _spoiled_scalars(value: object) -> list[object]:
    if isinstance(value, bool):
        return [7, "yes"]
    if isinstance(value, int):
        return [-1, -(2**40), 2**40, 2**62, 0.5, None]
    return [float("nan"), "text"] if isinstance(value, float) else []


def _spoiled_arrays(array: np.ndarray[Any, Any]) -> Iterator[object]:
    if array.ndim and len(array):
        yield array[:-1]
        yield np.concatenate((array, array[:1]))
    if array.dtype.kind in "iu" and array.size:
        limits = np.iinfo(array.dtype)
        for number in (max(-1, limits.min), limits.min, min(limits.max, 2**40), limits.max):
            yield _filled(array, number)
        one = array.copy()
        one.reshape(-1)[-1] = min(limits.max, 2**40)
        yield one
    elif array.dtype.kind == "b":
        yield _filled(array, False)
        yield _filled(array, True)


def _filled(array: np.ndarray[Any, Any], value: object) -> np.ndarray[Any, Any]:
    filled = array.copy()
    filled[...] = value
    return filled


def put(state: Any, path: Path, value: object) -> Any:
    """Returns the state with one value changed."""
    changed = copy.copy(state)
    changed[path[0]] = value if len(path) == 1 else put(state[path[0]], path[1:], value)
    return changed


def ends_of(
    make: Callable[[], Trainer], states: Iterable[Any], go_on: Callable[[Trainer], object]
) -> Iterator[tuple[int, str]]:
    """Goes on from states in another process; yields how each ended, as a shell does, and what it said.

    The process goes from one to the next as long as it lives, so that a crash is that of one state alone.
    """
    waiting = list(states)
    while waiting:
        told = list(_ends(make, waiting, go_on))
        del waiting[: len(told)]
        yield from told


def _ends(make: Callable[[], Trainer], states: list[Any], go_on: Callable[[Trainer], object]) -> Iterator[Any]:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            for state in states:
                signal.alarm(SECONDS)
                os.write(writer, (json.dumps(_end(make, state, go_on)) + "\n").encode())
        finally:
            os._exit(0)
    os.close(writer)
    num_ends = 0
    with os.fdopen(reader) as lines:
        for line in lines:
            num_ends += 1
            yield tuple(json.loads(line))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if num_ends < len(states):
        yield code or 1, "the process ended"


def _end(make: Callable[[], Trainer], state: Any, go_on: Callable[[Trainer], object]) -> tuple[int, str]:
    trainer = None
    try:
        trainer = make()
        restore_rank(trainer, state)
        go_on(trainer)
    except QuintainError as error:
        return error.exit_code, str(error)
    except BaseException:
        return 1, traceback.format_exc()
    finally:
        if trainer is not None:
            with suppress(BaseException):
                trainer.close()
    return RUNS_ON, ""
