"""What child processes get of this one: where its code is found, and all variables but those that look like secrets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from quintain.services.reporting.redaction import is_secret

if TYPE_CHECKING:
    from quintain.typing import JsonObject

# Several processes share the machine; a pool of threads in each would only slow all of them down.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_MAX_NAMED = 8


def code_paths() -> JsonObject:
    """Returns where code is found: the search path for modules, and the working directory."""
    return {"sys_path": [os.path.abspath(entry) for entry in sys.path], "cwd": os.getcwd()}


def take_code_paths(words: JsonObject) -> None:
    """Lets this process find code where the process that sent `code_paths` does."""
    sys.path[:] = words["sys_path"]
    os.chdir(words["cwd"])


def add_code_paths(words: JsonObject) -> None:
    """Lets this process, which may be on another machine, find code there too, as far as it is there."""
    sys.path += [entry for entry in words["sys_path"] if entry not in sys.path and os.path.exists(entry)]
    if words["cwd"] and os.path.isdir(words["cwd"]):
        os.chdir(words["cwd"])


def child_environment(also: Iterable[str] = ()) -> dict[str, str]:
    """Returns the environment variables for a child; `also` names secrets to pass on."""
    hidden = withheld(also)
    return {**_DEFAULTS, **{name: value for name, value in os.environ.items() if name not in hidden}}


def withheld(also: Iterable[str] = ()) -> frozenset[str]:
    """Returns the names of the variables that a child does not get."""
    wanted = set(also)
    return frozenset(name for name, value in os.environ.items() if name not in wanted and is_secret(name, value))


def withheld_note(also: Iterable[str] = ()) -> tuple[str, ...]:
    """Returns a note for the error of a failed child: the variables that it did not get, if any."""
    names = sorted(withheld(also))
    if not names:
        return ()
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (
        f"note: worker processes do not see {', '.join(names[:_MAX_NAMED])}{more}, which look like secrets; "
        f"run.env_workers.pass_environment=[{names[0]}] would pass one on",
    )
