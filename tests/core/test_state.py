"""State is opt-out: every kind of attribute comes back, and what cannot come back is refused by name."""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from quintain.core.progress import Progress
from quintain.core.rng import Rng
from quintain.core.state import KeepsState, restore_generator, save_generator
from quintain.policies.settings import ActorCriticSettings
from quintain.services.checkpoints.state_files import decode, encode


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """Gives the state back as a checkpoint does: tensors as arrays, tuples as lists."""
    return decode(encode({"training": state, "records": {}}))["training"]


class Holder(KeepsState):
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def round_trip(before: Any, after: Any) -> Any:
    """Saves an object that holds `before` and restores into one that holds `after`."""
    restored = Holder(it=after)
    restored.load_state_dict(through_a_file(Holder(it=before).state_dict()))
    return restored.it


@pytest.mark.parametrize(
    ("before", "after"), [(True, False), (7, 0), (0.1, 0.0), ("text", ""), (None, None), (2.5, None), (None, 3)]
)
def test_scalars_come_back(before: Any, after: Any) -> None:
    restored = round_trip(before, after)
    assert restored == before
    assert type(restored) is type(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8", "bool"])
def test_arrays_come_back_into_the_same_memory(dtype: str) -> None:
    before, after = np.array([[1, 0], [3, 4]]).astype(dtype), np.zeros((2, 2), dtype)
    restored = round_trip(before, after)
    assert restored is after
    assert restored.dtype == dtype
    np.testing.assert_array_equal(restored, before)


def test_an_array_of_another_size_is_replaced_and_one_of_another_dtype_refused() -> None:
    np.testing.assert_array_equal(round_trip(np.arange(3), np.zeros(5, np.int64)), [0, 1, 2])
    with pytest.raises(TypeError):
        round_trip(np.zeros(2), np.zeros(2, np.int64))


def test_numpy_scalars_keep_their_type() -> None:
    restored = round_trip(np.float32(0.1), np.float32(0))
    assert type(restored) is np.float32
    assert restored == np.float32(0.1)


def test_tensors_come_back_into_the_same_memory() -> None:
    before, after = torch.tensor([1.5, -2.0]), torch.zeros(2)
    assert round_trip(before, after) is after
    assert torch.equal(after, before)
    assert torch.equal(round_trip(torch.arange(3), torch.zeros(1, dtype=torch.int64)), torch.arange(3))


def test_what_was_saved_does_not_follow_later_changes() -> None:
    holder = Holder(tensor=torch.zeros(2), array=np.zeros(2), items=[1, 2])
    saved = holder.state_dict()
    holder.tensor += 1
    holder.array += 1
    holder.items.append(3)
    assert saved["tensor"].sum() == 0
    assert saved["array"].sum() == 0
    assert saved["items"] == [1, 2]


@pytest.mark.parametrize(
    "kind", [np.random.PCG64, np.random.PCG64DXSM, np.random.Philox, np.random.SFC64, np.random.MT19937]
)
def test_generators_continue_where_they_were(kind: type) -> None:
    generator = np.random.Generator(kind(3))
    generator.integers(10, size=3, dtype=np.uint32)  # leaves half a word in generators that buffer one
    restored = round_trip(generator, np.random.default_rng(0))
    np.testing.assert_array_equal(restored.random(5), generator.random(5))
    np.testing.assert_array_equal(restored.standard_normal(5), generator.standard_normal(5))


def test_a_generator_of_an_unknown_kind_is_refused() -> None:
    saved = save_generator(np.random.default_rng(0))
    saved["bit_generator"]["bit_generator"] = "RandomState"
    with pytest.raises(KeyError, match="RandomState"):
        restore_generator(saved)


def test_lists_tuples_and_dicts_come_back_with_what_is_in_them() -> None:
    before = {"a": [1, (2.5, "x")], "b": np.arange(2), "c": {"d": torch.ones(2)}}
    after = {"a": [0, (0.0, "")], "b": np.zeros(2, np.int64), "c": {"d": torch.zeros(2)}}
    restored = round_trip(before, after)
    assert restored["a"] == [1, (2.5, "x")]
    np.testing.assert_array_equal(restored["b"], [0, 1])
    assert torch.equal(restored["c"]["d"], torch.ones(2))
    assert round_trip([1, 2, 3], [0]) == [1, 2, 3]
    assert round_trip({"x": 1, "y": 2}, {"x": 0}) == {"x": 1, "y": 2}


def test_parts_that_keep_state_are_restored_in_place() -> None:
    before, after = Progress(10), Progress(10)
    before.close_cycle(env_steps=5, episodes=1)
    assert round_trip(before, after) is after
    assert after.env_steps == 5
    network, other = nn.Linear(2, 2), nn.Linear(2, 2)
    Holder(it=other).load_state_dict(Holder(it=network).state_dict())
    assert torch.equal(other.weight, network.weight)


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Fixed:
    x: int


@dataclass
class Loose:
    x: int


@pytest.mark.parametrize(
    "constant",
    [int, nn.Linear, KeepsState, len, lambda: None, types, np.dtype("f4"), Path("a"), Colour.RED, range(3),
     frozenset({1}), Fixed(1), ActorCriticSettings(), Rng(0), "".join],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_constants_are_left_out(constant: Any) -> None:
    holder = Holder(it=constant, x=1)
    assert holder.state_dict() == {"x": 1}
    holder.load_state_dict({"x": 2})
    assert (holder.it, holder.x) == (constant, 2)


@pytest.mark.parametrize(
    "value", [object(), {1, 2}, Loose(1), torch.Generator(), iter([1]), [object()], {"a": {1}}, {1: "int key"}],
    ids=lambda value: str(type(value).__name__),
)  # fmt: skip
def test_what_cannot_be_saved_is_refused_by_name(value: Any) -> None:
    with pytest.raises(TypeError, match=r"Holder\.it.*(not_state|text)"):
        Holder(it=value).state_dict()


def test_not_state_leaves_an_attribute_out() -> None:
    class Careless(Holder):
        not_state = frozenset({"scratch"})

    assert Careless(scratch=object(), x=1).state_dict() == {"x": 1}


def test_a_forgotten_or_an_unknown_attribute_is_noticed() -> None:
    with pytest.raises(KeyError, match="Holder"):
        Holder(x=1, y=2).load_state_dict({"x": 1})
    with pytest.raises(KeyError, match="Holder"):
        Holder(x=1).load_state_dict({"x": 1, "z": 1})
