"""Spaces become specs, and each space that cannot is refused with a sentence that says what to do."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quintain.data.spec import DictSpec, DiscreteSpec, MultiDiscreteSpec, TupleSpec, box
from quintain.envs.gym.spaces import behavior_spec, text_notes
from quintain.errors import SpecMismatch

OBS, ACTION = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)


def test_boxes_and_choices_become_specs() -> None:
    low, high = np.array([[0, -np.inf]], np.float32), np.array([[2, 3]], np.float32)
    spec = behavior_spec("env", spaces.Box(low, high), spaces.Discrete(3, start=-1))
    assert spec.obs.shape == (1, 2)
    assert spec.obs.low == (0.0, -np.inf)
    assert spec.obs.high == (2.0, 3.0)
    assert spec.action == DiscreteSpec(n=3, start=-1)
    assert behavior_spec("env", OBS, spaces.Box(-2, 2, (3,), np.float64)).action == box(3, low=-2, high=2)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(np.float64, "float32"), (np.int32, "float32"), (np.uint8, "uint8"), (np.float32, "float32")],
)
def test_images_stay_bytes_and_all_else_is_float32(dtype: Any, expected: str) -> None:
    assert behavior_spec("env", spaces.Box(0, 1, (2,), dtype), ACTION).obs.dtype == expected


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Discrete(5, start=2), DiscreteSpec(5, 2)),
        (spaces.MultiDiscrete([2, 3]), MultiDiscreteSpec((2, 3))),
        (spaces.MultiDiscrete([2, 3], start=[0, 4]), MultiDiscreteSpec((2, 3), starts=(0, 4))),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), MultiDiscreteSpec((2, 3, 4, 5), env_shape=(2, 2))),
        (spaces.MultiBinary(3), box(3, low=0, high=1)),
        (spaces.MultiBinary((2, 2)), box(2, 2, low=0, high=1)),
        (spaces.Dict({"b": OBS, "a": ACTION}), DictSpec((("a", DiscreteSpec(2)), ("b", box(2, low=-1, high=1))))),
        (
            spaces.Dict(OrderedDict(b=OBS, a=ACTION)),
            DictSpec((("b", box(2, low=-1, high=1)), ("a", DiscreteSpec(2)))),
        ),
        (spaces.Tuple((ACTION, OBS)), TupleSpec((DiscreteSpec(2), box(2, low=-1, high=1)))),
        (
            spaces.Dict({"inner": spaces.Tuple((spaces.Dict({"x": ACTION}),))}),
            DictSpec((("inner", TupleSpec((DictSpec((("x", DiscreteSpec(2)),)),))),)),
        ),
    ],
    ids=lambda value: " ".join(str(value).split()),
)
def test_every_kind_of_observation_becomes_a_spec(space: Any, expected: Any) -> None:
    assert behavior_spec("env", space, ACTION).obs == expected


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.MultiDiscrete([2, 3], start=[1, 0]), MultiDiscreteSpec((2, 3), starts=(1, 0))),
        (spaces.MultiBinary(3), MultiDiscreteSpec((2, 2, 2))),
        (spaces.MultiBinary((2, 2)), MultiDiscreteSpec((2, 2, 2, 2), env_shape=(2, 2))),
        (spaces.Dict({"go": OBS, "do": ACTION}), DictSpec((("do", DiscreteSpec(2)), ("go", box(2, low=-1, high=1))))),
        (spaces.Tuple((ACTION, spaces.MultiDiscrete([3, 4]))), TupleSpec((DiscreteSpec(2), MultiDiscreteSpec((3, 4))))),
    ],
    ids=lambda value: " ".join(str(value).split()),
)
def test_every_kind_of_action_becomes_a_spec(space: Any, expected: Any) -> None:
    assert behavior_spec("env", OBS, space).action == expected


def test_text_is_left_out_with_a_note_or_encoded() -> None:
    text = spaces.Text(max_length=4, charset="ba")
    space = spaces.Dict({"mission": text, "inner": spaces.Dict({"say": text, "x": OBS})})
    kept = DictSpec((("inner", DictSpec((("x", box(2, low=-1, high=1)),))),))
    assert behavior_spec("env", space, ACTION).obs == kept
    (note,) = text_notes("env", space, encode_text=False)
    assert "does not see the text in inner.say, mission" in note
    encoded = dict(behavior_spec("env", space, ACTION, encode_text=True).obs.entries)
    # One choice per place: 0 for nothing, 1 and 2 for the two characters.
    assert encoded["mission"].nvec == (3, 3, 3, 3)
    assert encoded["mission"].characters == "ab"
    (note,) = text_notes("env", space, encode_text=True)
    assert "one discrete value per character: inner.say, mission" in note
    assert text_notes("env", OBS, encode_text=True) == ()


@pytest.mark.parametrize("space", [spaces.Text(4), spaces.Dict({"say": spaces.Text(4)})], ids=["alone", "in a Dict"])
def test_nothing_to_see_but_text_is_refused_unless_it_is_encoded(space: Any) -> None:
    with pytest.raises(SpecMismatch, match=r"nothing to observe in .*; set text_observations: encode"):
        behavior_spec("env", space, ACTION)
    assert behavior_spec("env", space, ACTION, encode_text=True)


def test_text_in_a_tuple_is_refused_unless_it_is_encoded() -> None:
    with pytest.raises(SpecMismatch, match="text inside a Tuple observation; set text_observations: encode"):
        behavior_spec("env", spaces.Tuple((OBS, spaces.Text(4))), ACTION)


@pytest.mark.parametrize(
    "space",
    [spaces.Graph(ACTION, None), spaces.Sequence(OBS), spaces.Dict({"a": spaces.Sequence(OBS)})],
    ids=["Graph", "Sequence", "Sequence in a Dict"],
)
def test_other_observations_are_refused(space: Any) -> None:
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("Maze-v0", space, ACTION)
    assert refused.value.exit_code == 2
    assert refused.value.code == "E0513"
    unsupported = space["a"] if isinstance(space, spaces.Dict) else space
    assert refused.value.message.startswith(f"env 'Maze-v0' has a {type(unsupported).__name__}")
    assert refused.value.message.endswith("of these are. Wrap it to turn it into one of them")


@pytest.mark.parametrize(
    "space",
    [spaces.Box(0, 5, (2,), np.int64), spaces.Text(3), spaces.Sequence(OBS)],
    ids=lambda space: type(space).__name__,
)
def test_other_actions_are_refused(space: Any) -> None:
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("Maze-v0", OBS, space)
    assert refused.value.message.startswith(f"env 'Maze-v0' has a {type(space).__name__}")
    assert refused.value.message.endswith(
        "action space, which is not supported; Discrete, MultiDiscrete, MultiBinary, float Box and Dict or Tuple of "
        "these are"
    )


@pytest.mark.parametrize("key", ["a.b", 3])
def test_keys_that_cannot_be_parts_of_field_names_are_refused(key: Any) -> None:
    for spaces_of in ((spaces.Dict({key: OBS}), ACTION), (OBS, spaces.Dict({key: ACTION}))):
        with pytest.raises(SpecMismatch, match="keys must be text without dots"):
            behavior_spec("env", *spaces_of)


def test_empty_spaces_are_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"empty observation space .* needs at least one number"):
        behavior_spec("env", spaces.Box(0, 1, (0,), np.float32), ACTION)
    with pytest.raises(SpecMismatch, match=r"empty action space .* needs at least one number"):
        behavior_spec("env", OBS, spaces.Box(0, 1, (2, 0), np.float32))

    class Discrete(SimpleNamespace):
        """Gymnasium itself refuses Discrete(0); another library's space may not."""

    with pytest.raises(SpecMismatch, match=r"empty action space .* needs at least one action"):
        behavior_spec("env", OBS, Discrete(n=0, start=0))


@pytest.mark.parametrize("empty", [spaces.Dict({}), spaces.Tuple(())], ids=["Dict", "Tuple"])
def test_structures_without_anything_in_them_are_refused(empty: Any) -> None:
    with pytest.raises(SpecMismatch, match="nothing to observe"):
        behavior_spec("env", empty, ACTION)
    with pytest.raises(SpecMismatch, match="empty action space"):
        behavior_spec("env", OBS, empty)


def test_a_space_with_a_long_name_does_not_fill_the_line() -> None:
    many = spaces.OneOf([OBS] * 30)
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("env", many, ACTION)
    assert len(refused.value.message) < 250
