"""Serializes a state to one byte string, for another process of the same run: both files of a checkpoint, joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quintain.services.checkpoints import state_files
from quintain.services.checkpoints.state_files import DIGESTED, SUBTREES, EncodedState

if TYPE_CHECKING:
    from quintain.typing import Saved, State

_LENGTH_BYTES = 8


def pack(state: State) -> bytes:
    """Serializes a state; values that are not finite are refused later, by the checkpoint."""
    encoded = state_files.encode(state_files.with_bulk_inside(state), allow_nonfinite=SUBTREES)
    document = encoded.document_bytes()
    return len(document).to_bytes(_LENGTH_BYTES, "little") + document + encoded.tensor_bytes()


def unpack(data: bytes) -> State:
    """Deserializes a packed state; raises ValueError for other bytes. Tensors are returned as arrays."""
    end = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    encoded: EncodedState = state_files.parse(data[end:], data[_LENGTH_BYTES:end])
    return state_files.decode(encoded)


def pack_value(value: Saved) -> bytes:
    """Serializes any part of a state: a tensor, a scalar, a string, or lists and dicts of these."""
    return pack({DIGESTED: {"value": value}})


def unpack_value(data: bytes) -> Saved:
    return unpack(data)[DIGESTED]["value"]
