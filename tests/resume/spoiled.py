"""Edits single values of a saved state, and says how a process ends that goes on from it."""

from __future__ import annotations

import copy
import os
import random
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from quintain.errors import QuintainError
from quintain.runs.restore import restore_rank
from quintain.services.checkpoints import state_files
from quintain.trainers.base import Trainer

SECONDS = 60
MOST_EDITS = 200
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
    """Returns some of these edits, the same each time: one for every place, and others as long as there is time."""
    edits = list(spoiled(state))
    random.Random(0).shuffle(edits)
    places = {path: number for number, (path, _) in enumerate(edits)}
    needed = set(places.values())
    others = [number for number in range(len(edits)) if number not in needed]
    return [edits[number] for number in [*needed, *others[: max(0, MOST_EDITS - len(needed))]]]


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


def end_of(make: Callable[[], Trainer], state: Any, go_on: Callable[[Trainer], object]) -> tuple[int, str]:
    """Goes on from a state in a process of its own; returns how it ended, as a shell does, and what it said."""
    with tempfile.TemporaryFile("w+") as said:
        pid = os.fork()
        if pid == 0:
            signal.alarm(SECONDS)
            code = 1
            try:
                trainer = make()
                restore_rank(trainer, state)
                go_on(trainer)
                code = RUNS_ON
            except QuintainError as error:
                code = error.exit_code
                print(error, file=said)
            except BaseException:
                traceback.print_exc(file=said)
            finally:
                said.flush()
                sys.stdout.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        said.seek(0)
        return os.waitstatus_to_exitcode(status), said.read()
