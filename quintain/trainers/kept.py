"""Saves objects that users' own loops are made of, and restores them in place, so that every reference stays good.

Modules and schedulers of torch, generators of numpy and torch, dataclasses, arrays, tensors, and anything
with `state_dict` and `load_state_dict`. A saved state is believed in nothing: names, types and shapes must be those of
the object that takes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import get_type_hints

import numpy as np
import torch
from torch import nn

from quintain.core.state import Kept, as_tensor, as_tensors, restore_generator, save_generator
from quintain.policies.optimizer_state import like, require_keys
from quintain.typing import Saved, Stateful

# A dict with one of these keys stands for a value that a checkpoint would give back as another type.
_TENSOR, _TUPLE, _FLOAT = "#tensor", "#tuple", "#float"


def save_object(value: Kept, where: str) -> Saved:
    """Returns the state of an object as a checkpoint stores it; raises TypeError for one that cannot be kept."""
    if isinstance(value, nn.Module):
        return dict(value.state_dict())
    if isinstance(value, Stateful):
        return _to_plain(value.state_dict(), where)
    if isinstance(value, np.random.Generator):
        return save_generator(value)
    if isinstance(value, torch.Generator):
        return value.get_state()
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: save_object(getattr(value, each.name), f"{where}.{each.name}") for each in fields(value)}
    return _to_plain(value, where)


def restore_object(now: Kept, saved: Saved, where: str) -> Kept:
    """Puts an object back to a saved state and returns it; an immutable one is replaced by the value returned."""
    if isinstance(now, nn.Module):
        now.load_state_dict(as_tensors(saved))
    elif isinstance(now, torch.optim.lr_scheduler.LRScheduler):
        now.load_state_dict(like(now.state_dict(), _from_plain(saved), where))
    elif isinstance(now, Stateful):
        now.load_state_dict(_from_plain(saved))
    elif isinstance(now, np.random.Generator):
        now.bit_generator.state = restore_generator(saved).bit_generator.state
    elif isinstance(now, torch.Generator):
        now.set_state(as_tensor(saved))
    elif is_dataclass(now) and not isinstance(now, type):
        hints = get_type_hints(type(now))
        require_keys({each.name for each in fields(now)}, saved, where)
        for name, value in saved.items():
            place = f"{where}.{name}"
            if hints.get(name) is int and type(value) is not int:
                raise ValueError(f"{place} is {value!r}, expected a whole number")
            setattr(now, name, restore_object(getattr(now, name), value, place))
    else:
        return like(now, _from_plain(saved), where)
    return now


def _to_plain(value: Kept, where: str) -> Saved:
    if isinstance(value, torch.Tensor):
        return {_TENSOR: value.detach().clone()}
    if isinstance(value, np.ndarray | np.generic):
        return value.copy()
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(float(value))}
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple):
        items = [_to_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {_TUPLE: items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        if other := [key for key in value if type(key) is not int and (type(key) is not str or key.startswith("#"))]:
            raise TypeError(f"{where} has the key {other[0]!r}, which cannot be saved; use text or whole numbers")
        return {f"#{key}" if isinstance(key, int) else key: _to_plain(item, f"{where}[{key!r}]")
                for key, item in value.items()}  # fmt: skip
    raise TypeError(
        f"{where} is a {type(value).__name__}, which cannot be kept; keep a module, an optimizer, a generator or an "
        f"array by a name of its own, a dataclass of numbers, or an object with state_dict and load_state_dict"
    )


def _from_plain(saved: Saved) -> Kept:
    if isinstance(saved, list):
        return [_from_plain(item) for item in saved]
    if not isinstance(saved, Mapping):
        return saved
    match dict(saved):
        case {"#tensor": value, **others} if not others:
            return as_tensor(value)
        case {"#tuple": [*items], **others} if not others:
            return tuple(_from_plain(item) for item in items)
        case {"#float": "nan" | "inf" | "-inf" as text, **others} if not others:
            return float(text)
    return {int(key[1:]) if key.startswith("#") else key: _from_plain(item) for key, item in saved.items()}
