"""Serializes a state tree to one safetensors file, one JSON document and files of bulk arrays, and back, without loss.

A tree is dicts with string keys and lists; its leaves are tensors, bulk arrays, scalars, strings, booleans and None.
Tensors are recognised by their `detach` method, so this module needs no torch; they are returned as NumPy arrays. The
document contains the hash of each bulk array, so that the digest covers it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors_numpy

from quintain.core.state import BulkArray
from quintain.errors import CheckpointError, NonFiniteError

if TYPE_CHECKING:
    import torch

    from quintain.typing import Array, Json, Saved, State

DIGESTED = "training"
"""The subtree that the digest covers."""
SUBTREES = (DIGESTED, "records")
MAX_DOCUMENT_BYTES = 64_000_000
MAX_HEADER_BYTES = 16_000_000
MAX_DEPTH = 64

# A dict {"$": ...} in the document stands for a leaf JSON cannot hold; keys that begin with "$" get one more.
_MARK = "$"
_TENSOR = "tensor"
_BULK = "bulk"
_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_JSON_INT_LIMIT = 1 << 63
_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
    | {"float16", "float32", "float64", "complex64"}
)


@runtime_checkable
class _TorchTensor(Protocol):
    def detach(self) -> torch.Tensor: ...


@dataclass(frozen=True)
class EncodedState:
    """A state tree as its two files represent it: tensors by path, and the tree with a marker for each tensor.

    Example: `{"training": {"w": tensor, "step": 3}}` has the tensor `training/w` and the document `{"training": {"w":
    {"$": "tensor"}, "step": 3}}`.
    """

    tensors: dict[str, Array]
    document: dict[str, Json]
    bulk: dict[str, Array] = field(default_factory=dict)
    """The bytes of bulk arrays by their SHA-256."""

    def digest(self) -> str:
        """Returns the SHA-256 of the logical state: no paths, times, versions or order of insertion."""
        total = hashlib.sha256(b"quintain-state-1\n")
        for name in sorted(name for name in self.tensors if name.startswith(f"{DIGESTED}/")):
            array = self.tensors[name]
            total.update(_canonical([name, array.dtype.name, list(array.shape)]))
            total.update(array.reshape(-1).view(np.uint8).data)
        total.update(_canonical(self.document[DIGESTED]))
        return total.hexdigest()

    def tensor_bytes(self) -> bytes:
        """Returns the contents of state.safetensors."""
        return safetensors_numpy.save(self.tensors)

    def document_bytes(self) -> bytes:
        """Returns the contents of state.json; keys keep their order, which optimizers may rely on."""
        return json.dumps(self.document, allow_nan=False, separators=(",", ":")).encode()


def encode(state: Mapping[str, object], *, allow_nonfinite: Collection[str] = ()) -> EncodedState:
    """Splits a state into tensors and document; refuses NaN and infinity outside the allowed paths."""
    if DIGESTED not in state or not set(state) <= set(SUBTREES):
        found = ", ".join(sorted(map(str, state))) or "nothing"
        raise CheckpointError(f'state: found the subtrees {found}, expected "training" and "records"', code="E0408")
    encoder = _Encoder(allow_nonfinite)
    document: dict[str, Json] = {name: encoder.encode_dict(state[name], name, 1) for name in state}
    return EncodedState(encoder.tensors, document, encoder.bulk)


def decode(encoded: EncodedState) -> State:
    """Rebuilds the tree; raises ValueError if tensors and document do not belong together."""
    decoder = _Decoder(encoded.tensors, encoded.bulk)
    state = {name: decoder.decode(subtree, name, 1) for name, subtree in encoded.document.items()}
    if decoder.unused:
        raise ValueError(f"tensor {min(decoder.unused)!r} is not in the tree")
    if decoder.unused_bulk:
        raise ValueError(f"bulk array {min(decoder.unused_bulk)} is not in the tree")
    return state


def digest_of(state: Mapping[str, object]) -> str:
    """Returns the digest of a state in memory, equal to that of its checkpoint."""
    return encode(state, allow_nonfinite=SUBTREES).digest()


def parse(tensor_bytes: bytes, document_bytes: bytes, bulk: Mapping[str, Array] | None = None) -> EncodedState:
    """Parses the files' contents; raises ValueError that names the file and the problem."""
    return EncodedState(_parse_tensors(tensor_bytes), _parse_document(document_bytes), dict(bulk or {}))


def with_bulk_inside(tree: Saved) -> Saved:
    """Replaces bulk arrays by plain ones, for a state that is sent as one byte string."""
    if isinstance(tree, Mapping):
        return {key: with_bulk_inside(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [with_bulk_inside(value) for value in tree]
    return tree.array if isinstance(tree, BulkArray) else tree


def has_sound_header(start: bytes, size: int) -> bool:
    """Whether the header length of a safetensors file lies within the file and our limit."""
    return size >= 8 and int.from_bytes(start[:8], "little") <= min(MAX_HEADER_BYTES, size - 8)


class _Encoder:
    def __init__(self, allow_nonfinite: Collection[str]) -> None:
        self.tensors: dict[str, Array] = {}
        self.bulk: dict[str, Array] = {}
        self._allowed = tuple(f"{path}/" for path in allow_nonfinite)

    def encode_dict(self, tree: object, path: str, depth: int) -> dict[str, Json]:
        if not isinstance(tree, Mapping):
            raise _unsupported(path, tree)
        document: dict[str, Json] = {}
        for key, value in tree.items():
            if not isinstance(key, str):
                raise _unsupported(f"{path}/{key}", key)
            document[f"{_MARK}{key}" if key.startswith(_MARK) else key] = self._encode(
                value, _join(path, key), depth + 1
            )
        return document

    def _encode(self, value: object, path: str, depth: int) -> Json:
        if depth > MAX_DEPTH:
            raise CheckpointError(f"state at {path}: nested deeper than {MAX_DEPTH} levels", code="E0408")
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            # Decimal text of a huge integer is quadratic to parse and refused by Python above 4300 digits.
            return value if -_JSON_INT_LIMIT <= value < _JSON_INT_LIMIT else {_MARK: hex(value)}
        if isinstance(value, float):
            if math.isfinite(value):
                return value
            self._refuse_nonfinite(path, repr(value))
            return {_MARK: repr(value)}
        if isinstance(value, Mapping):
            return self.encode_dict(value, path, depth)
        if isinstance(value, list):
            return [self._encode(item, f"{path}/{index}", depth + 1) for index, item in enumerate(value)]
        if isinstance(value, BulkArray):
            return self._encode_bulk(value, path)
        self.tensors[path] = self._array(value, path)
        return {_MARK: _TENSOR}

    def _encode_bulk(self, value: BulkArray, path: str) -> Json:
        if value.array.dtype.name not in _DTYPES:
            raise _unsupported(path, value.array)
        self.bulk[value.sha256] = value.bytes
        return {
            _MARK: _BULK,
            "sha256": value.sha256,
            "dtype": value.array.dtype.name,
            "shape": list(value.array.shape),
        }

    def _array(self, value: object, path: str) -> Array:
        if isinstance(value, _TorchTensor):
            try:
                value = value.detach().cpu().numpy()
            except TypeError as error:
                raise CheckpointError(f"state at {path}: {error}. Store it as float32", code="E0408") from error
        if not isinstance(value, np.ndarray) or value.dtype.name not in _DTYPES:
            raise _unsupported(path, value)
        array = np.asarray(value, dtype=value.dtype.newbyteorder("<"), order="C")
        if array.dtype.kind in "fc" and not (finite := np.isfinite(array)).all():
            index = tuple(int(i) for i in np.argwhere(~finite)[0])
            self._refuse_nonfinite(path, f"{array[index]} at index {index}")
        return array

    def _refuse_nonfinite(self, path: str, found: str) -> None:
        if not f"{path}/".startswith(self._allowed):
            raise NonFiniteError(
                f"state at {path}: found {found}, expected finite numbers; the checkpoint was not written. "
                "Continue from the last one with: quintain resume",
                code="E0606",
            )


class _Decoder:
    def __init__(self, tensors: Mapping[str, Array], bulk: Mapping[str, Array]) -> None:
        self._tensors = tensors
        self._bulk = bulk
        self.unused = set(tensors)
        self.unused_bulk = set(bulk)

    def decode(self, document: Json, path: str, depth: int) -> Saved:
        if depth > MAX_DEPTH:
            raise ValueError(f"{path} is nested deeper than {MAX_DEPTH} levels")
        if isinstance(document, list):
            return [self.decode(item, f"{path}/{index}", depth + 1) for index, item in enumerate(document)]
        if not isinstance(document, dict):
            return document
        if _MARK in document:
            return self._decode_mark(document, path)
        tree = {}
        for written, value in document.items():
            key = written.removeprefix(_MARK)
            tree[key] = self.decode(value, _join(path, key), depth + 1)
        return tree

    def _decode_mark(self, document: dict[str, Json], path: str) -> Saved:
        mark = document[_MARK]
        if mark == _BULK:
            return self._decode_bulk(document, path)
        if len(document) != 1:
            raise ValueError(f"{path} has a mark beside other keys")
        if mark == _TENSOR and path in self.unused:
            self.unused.remove(path)
            return self._tensors[path]
        if isinstance(mark, str) and mark in _NONFINITE:
            return _NONFINITE[mark]
        if isinstance(mark, str) and mark.lstrip("-").startswith("0x"):
            return int(mark, 16)
        raise ValueError(f"{path} has the mark {mark!r} but no such value")

    def _decode_bulk(self, document: dict[str, Json], path: str) -> Array:
        name, dtype, shape = (document.get(key) for key in ("sha256", "dtype", "shape"))
        if not isinstance(name, str) or name not in self._bulk or dtype not in _DTYPES or not isinstance(shape, list):
            raise ValueError(f"{path} names a bulk array that is not there")
        self.unused_bulk.discard(name)
        try:
            return self._bulk[name].view(str(dtype)).reshape([int(n) for n in shape if isinstance(n, int)])
        except ValueError as error:
            raise ValueError(f"{path}: its bulk array has another size ({error})") from error


def _parse_tensors(data: bytes) -> dict[str, Array]:
    if not has_sound_header(data, len(data)):
        raise ValueError("state.safetensors: its header does not fit in the file")
    try:
        return safetensors_numpy.load(data)
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"state.safetensors: {error}") from error


def _parse_document(data: bytes) -> dict[str, Json]:
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"state.json: {error}") from error
    if not isinstance(document, dict) or DIGESTED not in document or not set(document) <= set(SUBTREES):
        raise ValueError('state.json: expected the subtrees "training" and "records"')
    if not all(isinstance(subtree, dict) for subtree in document.values()):
        raise ValueError("state.json: a subtree is not an object")
    return document


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _canonical(value: Json) -> bytes:
    return json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _join(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _unsupported(path: str, value: object) -> CheckpointError:
    kind = f"array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
    expected = "dicts with string keys, lists, tensors, numbers, strings, booleans and None"
    return CheckpointError(f"state at {path}: found {kind}, expected {expected}", code="E0408")
