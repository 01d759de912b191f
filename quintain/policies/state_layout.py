"""Lays the nested hidden state of a user's module out as one flat row per lane, as rollouts keep it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from quintain.errors import SettingsError
from quintain.policies.mine_policy import MinePolicy

if TYPE_CHECKING:
    from quintain.typing import Tree


class StateLayout:
    """Converts between nested states of a batch and rows [N, size] of float32.

    Where the batch axis of each tensor is found by comparing states of one and two sequences, tensors are moved as a
    whole. A module whose `merge_state` lays states out otherwise is asked, one sequence at a time.
    """

    def __init__(self, network: MinePolicy) -> None:
        self.network = network
        self.template = network.initial_state(1)
        one, two = (list(tensors_in(network.initial_state(n))) for n in (1, 2))
        self.axes: list[int | None] = []
        """The batch axis of each tensor; None where it has none."""
        for small, large in zip(one, two, strict=True):
            sizes = list(zip(small.shape, large.shape, strict=False))
            differing = [axis for axis, (a, b) in enumerate(sizes) if a != b]
            is_found = small.ndim == large.ndim and len(differing) == 1 and sizes[differing[0]] == (1, 2)
            self.axes.append(differing[0] if is_found else None)
        self.shapes = [tuple(each.shape) for each in one]
        self.dtypes = [each.dtype for each in one]
        self.size = sum(math.prod(shape) for shape in self.shapes)
        """Numbers in one row."""
        self.asks_network = self._is_unusual()
        """Whether states are merged and split by the module itself."""

    def _is_unusual(self) -> bool:
        if not self.size:
            return False
        generator = torch.Generator().manual_seed(0)
        rows = torch.rand((2, self.size), generator=generator).round(decimals=1).to(self.network.device)
        try:
            merged = self._merged(rows)
        except (NotImplementedError, AttributeError) as error:
            if None not in self.axes:
                return False
            raise SettingsError(
                f"policy.network: initial_state(2) of {type(self.network).__name__} has tensors that are not twice as "
                f"large as those of initial_state(1) along one axis; let it have them, or add merge_state and "
                f"split_state",
                code="E0245",
            ) from error
        if None in self.axes:
            return True
        pairs = list(zip(tensors_in(merged), tensors_in(self._stacked(rows)), strict=True))
        return not all(mine.shape == ours.shape and torch.equal(mine, ours) for mine, ours in pairs)

    def pack(self, state: Tree, num_rows: int) -> torch.Tensor:
        """Returns rows [N, size] of a state; refuses one of another structure than that of `initial_state`."""
        if self.asks_network:
            parts = [self._leaves(each) for each in self.network.split_state(state, num_rows)]
            return torch.stack([torch.cat([each.reshape(-1).float() for each in part]) for part in parts])
        moved = [leaf.movedim(axis or 0, 0) for leaf, axis in zip(self._leaves(state), self.axes, strict=True)]
        if not moved:
            return torch.zeros(num_rows, 0)
        return torch.cat([leaf.reshape(num_rows, -1).float() for leaf in moved], dim=1)

    def _leaves(self, state: Tree) -> list[torch.Tensor]:
        return list(_like(self.template, state, type(self.network).__name__))

    def unpack(self, rows: torch.Tensor | None) -> Tree:
        """Returns the state of a batch from rows [N, size]; None is that of a module without memory."""
        if rows is None or not self.size:
            return self.template
        return self._merged(rows) if self.asks_network else self._stacked(rows)

    def _merged(self, rows: torch.Tensor) -> Tree:
        """Returns the state that the module itself makes of single ones."""
        sizes = [math.prod(shape) for shape in self.shapes]
        single = []
        for row in rows:
            parts = iter(zip(torch.split(row, sizes), self.shapes, self.dtypes, strict=True))
            single.append(_rebuilt(self.template, lambda parts=parts: _shaped(*next(parts))))  # type: ignore[misc]  # bound now
        return self.network.merge_state(single)

    def _stacked(self, rows: torch.Tensor) -> Tree:
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = iter(zip(torch.split(rows, sizes, dim=1), self.shapes, self.dtypes, self.axes, strict=True))

        def tensor() -> torch.Tensor:
            part, shape, dtype, axis = next(parts)
            rest = (*shape[: axis or 0], *shape[(axis or 0) + 1 :])
            # Not len(), which an exporter would take for a constant.
            return _shaped(part, (rows.shape[0], *rest), dtype).movedim(0, axis or 0)

        return _rebuilt(self.template, tensor)


def tensors_in(state: Tree) -> Iterator[torch.Tensor]:
    """Yields the tensors of a nested state in its order."""
    if isinstance(state, dict):
        state = list(state.values())
    if isinstance(state, list | tuple):
        for each in state:
            yield from tensors_in(each)
    elif state is not None:
        yield state


def _like(template: Tree, state: Tree, owner: str) -> Iterator[torch.Tensor]:
    """Yields the tensors of a state in the order of another, which has the same structure."""
    if isinstance(template, dict) and isinstance(state, dict) and template.keys() == state.keys():
        for name, each in template.items():
            yield from _like(each, state[name], owner)
    elif isinstance(template, list | tuple) and isinstance(state, list | tuple) and len(template) == len(state):
        for each, own in zip(template, state, strict=True):
            yield from _like(each, own, owner)
    elif isinstance(template, torch.Tensor) and isinstance(state, torch.Tensor):
        yield state
    elif [*tensors_in(template), *tensors_in(state)]:
        raise SettingsError(
            f"policy.network: {owner} returned a hidden state with {_described(state)} where its initial_state has "
            f"{_described(template)}; let both have the same structure, and the memory be there from the first step on",
            code="E0245",
        )


def _described(state: Tree) -> str:
    if isinstance(state, dict):
        return f"the entries {', '.join(map(str, state))}"
    if isinstance(state, list | tuple):
        return f"{len(state)} parts"
    return "None" if state is None else f"a {type(state).__name__}"


def _rebuilt(template: Tree, tensor: Callable[[], torch.Tensor]) -> Tree:
    """Returns a state in the structure of another, with tensors in their order."""
    if isinstance(template, dict):
        return {name: _rebuilt(each, tensor) for name, each in template.items()}
    if isinstance(template, list | tuple):
        parts = [_rebuilt(each, tensor) for each in template]
        if isinstance(template, list):
            return parts
        return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
    return None if template is None else tensor()


def _shaped(part: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    part = part.reshape(shape)
    return part != 0 if dtype == torch.bool else part.to(dtype)
