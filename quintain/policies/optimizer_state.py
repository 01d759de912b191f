"""Saves the state of an optimizer of `torch.optim` by the names of its parameters, and restores it strictly.

Tensors stay tensors, and tuples become lists; the optimizer that takes a state says which of its options are tuples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from quintain.core.state import Kept, as_tensor

if TYPE_CHECKING:
    from quintain.typing import Saved, State

_NONFINITE = ("nan", "inf", "-inf")


def save_optimizer(optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]]) -> State:
    """Returns the state of an optimizer; `names` are those of the parameters in each of its groups."""
    where = type(optimizer).__name__
    return {
        "class": where,
        "groups": [
            {"names": list(own), **{k: _saved(v, f"{where}.{k}") for k, v in group.items() if k != "params"}}
            for own, group in zip(names, optimizer.param_groups, strict=True)
        ],
        "state": {
            name: {k: _saved(v, f"{where}.{k}") for k, v in optimizer.state.get(parameter, {}).items()}
            for own, group in zip(names, optimizer.param_groups, strict=True)
            for name, parameter in zip(own, group["params"], strict=True)
        },
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, names: Sequence[Sequence[str]], state: State) -> None:
    """Gives an optimizer a state of the same class, for the same names in the same groups, of the same shapes."""
    where = type(optimizer).__name__
    places = {name: place for place, name in enumerate(name for own in names for name in own)}
    _require_same(f"{where}: the class", state["class"], where)
    _require_same(f"{where}: the names of parameters", [each["names"] for each in state["groups"]], list(names))
    _require_same(f"{where}: the names in its state", sorted(state["state"]), sorted(places))
    groups, kept = [], {}
    for number, (saved, own) in enumerate(zip(state["groups"], optimizer.param_groups, strict=True)):
        found = {key: _restored(value) for key, value in saved.items() if key != "names"}
        now = {key: value for key, value in own.items() if key != "params"}
        options = like(now, found, f"{where}: groups[{number}]")
        groups.append({**options, "params": [places[name] for name in saved["names"]]})
        keys: dict[int, list[str]] = {}
        for name, parameter in zip(saved["names"], own["params"], strict=True):
            if not (moments := {key: _restored(value) for key, value in state["state"][name].items()}):
                continue
            for key, value in moments.items():
                _require_shape(optimizer, f"{where}: the shape of {key} of {name}", value, parameter)
            others = keys.setdefault(parameter.dim(), sorted(moments))
            # Another package's optimizer may keep what it likes of each.
            if type(optimizer).__module__.startswith("torch.optim.") and sorted(moments) != others:
                raise ValueError(f"{where}: {name} has {sorted(moments)} in the checkpoint, and others have {others}")
            kept[places[name]] = moments
    optimizer.load_state_dict({"state": kept, "param_groups": groups})


def like(now: Kept, found: Kept, where: str) -> Kept:
    """Returns a value that was read if it is of the kind that stands here now; arrays of equal shape stay in place."""
    if isinstance(now, Mapping):
        require_keys(set(now), found, where)
        items = {key: like(value, found[key], f"{where}[{key!r}]") for key, value in now.items()}
        return items if type(now) is dict else type(now)(items)  # type: ignore[call-arg]  # a Counter
    is_number = isinstance(now, int | float) and not isinstance(now, bool)
    kind = int | float if is_number else list | tuple if isinstance(now, tuple) else type(now)
    if now is not None and (not isinstance(found, kind) or (is_number and isinstance(found, bool))):
        raise ValueError(f"{where} is {str(found)[:40]!r}, expected a {'number' if is_number else type(now).__name__}")
    if isinstance(now, np.ndarray | torch.Tensor):
        if now.dtype != found.dtype:
            raise ValueError(f"{where} has numbers of {found.dtype}, expected {now.dtype}")
        if now.shape != found.shape:
            return found
        with torch.no_grad():
            now[...] = found
        return now
    if isinstance(now, list | tuple) and len(now) == len(found):
        return type(now)(like(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(now, found, strict=True)))
    return tuple(found) if isinstance(now, tuple) else found


def require_keys(expected: set[str], found: Kept, where: str) -> None:
    """Refuses a value of a saved state that is no mapping with these keys."""
    if not isinstance(found, Mapping) or set(found) != expected:
        names = sorted(map(str, found)) if isinstance(found, Mapping) else type(found).__name__
        raise ValueError(f"{where} has {names}, expected {sorted(map(str, expected))}")


def _require_same(where: str, saved: Saved, now: Saved) -> None:
    if saved != now:
        raise ValueError(f"{where} is {saved} in the checkpoint, and {now} here")


def _require_shape(optimizer: torch.optim.Optimizer, where: str, found: Kept, parameter: torch.Tensor) -> None:
    """Refuses a tensor unless it has a number for each entry of the parameter, for its rows or columns, or for all."""
    # L-BFGS alone has a history of all parameters in one row.
    if isinstance(found, torch.Tensor) and found.dim() and not isinstance(optimizer, torch.optim.LBFGS):
        sizes = list(parameter.shape)
        if found.dim() != len(sizes) or any(a not in (1, b) for a, b in zip(found.shape, sizes, strict=True)):
            _require_same(where, list(found.shape), sizes)


def _saved(value: Kept, where: str) -> Saved:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        return [_saved(item, where) for item in value]
    raise TypeError(f"{where} is a {type(value).__name__}, which cannot be saved; use numbers, text or tensors")


def _restored(saved: Saved) -> Kept:
    if isinstance(saved, list):
        return [_restored(item) for item in saved]
    if isinstance(saved, str) and saved in _NONFINITE:
        return float(saved)
    return as_tensor(saved) if isinstance(saved, np.ndarray | torch.Tensor) else saved
