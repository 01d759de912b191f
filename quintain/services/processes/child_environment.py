"""Filters the environment variables of child processes: all but those that look like secrets."""

from __future__ import annotations

import os
from collections.abc import Iterable

from quintain.services.reporting.redaction import is_secret

# Several processes share the machine; a pool of threads in each would only slow all of them down.
_DEFAULTS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_MAX_NAMED = 8


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
