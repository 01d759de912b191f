"""Callables of a user's script that no other process can import, on their way to a process that this one starts.

A lambda, a closure or a class of the main script is packed by the learner, sent over the private socket of its own
child, and unpacked there. Nothing goes the other way: what a child sends is JSON and packed arrays, and nothing in a
run directory or a checkpoint is ever unpacked. The only module that may use cloudpickle (which comes with Gymnasium).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import cloudpickle  # type: ignore[import-untyped]  # has no types

from quintain.errors import SettingsError
from quintain.services.processes.messages import MAX_TEXT_BYTES

if TYPE_CHECKING:
    from quintain.core.registry import Maker, Registration

_HOW = "Make such things inside the function, or define it in a module that can be imported"


def pack_code(what: Maker | list[Registration], name: str) -> str:
    """Returns a callable, or parts with their settings, as text for a child; `name` is for the error."""
    try:
        text = base64.b64encode(cloudpickle.dumps(what)).decode()
    except Exception as error:  # what a user's object does when it is packed may raise anything
        first = (str(error).splitlines() or [""])[0]
        raise SettingsError(
            f"{name} cannot be sent to another process: {type(error).__name__}: {first}. {_HOW}", code="E0231"
        ) from error
    if len(text) > MAX_TEXT_BYTES // 2:
        raise SettingsError(
            f"{name} cannot be sent to another process: it brings {len(text) // 1_000_000} MB with it. {_HOW}",
            code="E0231",
        )
    return text


def unpack_code(text: str) -> Maker | list[Registration]:
    """Returns what the process that started this one packed. Only the main functions of children may call it."""
    found: Maker | list[Registration] = cloudpickle.loads(base64.b64decode(text))
    return found
