"""Strict truth values of environments: other objects, such as the text "false", are true or false by accident."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from quintain.errors import EnvError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from quintain.typing import Array

NO_NUMBERS = "OUSVmM"
"""Kinds of arrays that hold objects, texts, bytes, records and dates."""


def truth(value: ArrayLike, whose: str) -> bool:
    """Returns a bool for a bool, numpy's bool, 0 or 1, also as an array without axes; `whose` begins the error."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    found = np.asarray(value)
    if found.ndim == 0 and is_truth(found):
        return bool(found)
    shown = f"an array of shape {found.shape}" if found.ndim else f"{value!r:.80}"
    raise EnvError(f"{whose} as {shown}, expected True or False. Return bool(...) of it", code="E0511")


def truths(values: ArrayLike, num_lanes: int, whose: str) -> Array:
    """The same for one truth value per lane."""
    if type(values) is np.ndarray and values.dtype == np.bool_ and values.shape == (num_lanes,):
        return values
    found = np.asarray(values)
    if found.shape != (num_lanes,) or not is_truth(found):
        raise EnvError(
            f"{whose} as {found.dtype} of shape {found.shape}, expected True or False for each of {num_lanes} lanes",
            code="E0511",
        )
    return found.astype(np.bool_)


def is_truth(found: Array) -> bool:
    """Whether an array holds bools, or integers 0 and 1."""
    return found.dtype.kind == "b" or (found.dtype.kind in "iu" and bool(((found == 0) | (found == 1)).all()))
