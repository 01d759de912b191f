"""Specs say the same to people, to JSON and to arrays."""

from __future__ import annotations

import json

import numpy as np
import pytest

from quintain.data.saved_spec import require_same_specs
from quintain.data.spec import (
    BehaviorSpec,
    DictSpec,
    TupleSpec,
    box,
    build,
    discrete,
    discrete_sizes,
    flatten,
    leaves,
    multi_discrete,
    spec_from_dict,
)
from quintain.errors import CheckpointIncompatible

NESTED = DictSpec((("eye", TupleSpec((box(2), discrete(3)))), ("ear", multi_discrete(2, 4))))


def test_specs_print_briefly() -> None:
    assert str(BehaviorSpec(obs=box(4), action=discrete(2))) == "obs Box(4), action Discrete(2)"
    assert str(box(2, 3)) == "Box(2, 3)"
    assert str(box()) == "Box()"


def test_size_and_bounds_follow_the_shape() -> None:
    spec = box(2, 3, low=-1.0, high=2.0)
    low, high = spec.bounds()
    assert spec.size == 6
    assert low.shape == high.shape == (2, 3)
    assert low.dtype == np.float32
    assert (low == -1).all()
    assert (high == 2).all()
    assert box().size == 1


def test_a_box_is_bounded_if_any_side_is() -> None:
    assert not box(2).is_bounded
    assert box(2, low=0.0).is_bounded
    assert box(2, high=0.0).is_bounded


def test_json_holds_everything_and_null_for_a_missing_bound() -> None:
    described = BehaviorSpec(obs=box(2, low=0.0), action=discrete(3, start=1)).to_dict()
    assert json.loads(json.dumps(described, allow_nan=False)) == {
        "obs": {"type": "box", "shape": [2], "dtype": "float32", "low": [0.0, 0.0], "high": [None, None]},
        "action": {"type": "discrete", "n": 3, "start": 1},
        "mask_size": 0,
    }


def test_leaves_are_named_by_their_path_in_a_fixed_order() -> None:
    assert list(leaves(NESTED, "obs")) == ["obs.eye.0", "obs.eye.1", "obs.ear"]
    assert leaves(NESTED, "obs")["obs.eye.1"] == discrete(3)
    assert leaves(box(2), "obs") == {"obs": box(2)}


def test_flattening_and_building_are_inverse_and_ignore_what_the_spec_does_not_name() -> None:
    value = {"ear": "E", "eye": ("x", "y"), "nose": "not in the spec"}
    flat = flatten(NESTED, value, "obs")
    assert flat == {"obs.eye.0": "x", "obs.eye.1": "y", "obs.ear": "E"}
    assert build(NESTED, flat, "obs") == {"eye": ("x", "y"), "ear": "E"}
    assert flatten(box(1), "v", "obs") == {"obs": "v"}
    assert build(box(1), {"obs": "v"}, "obs") == "v"
    with pytest.raises(KeyError):
        flatten(NESTED, {"eye": ("x", "y")}, "obs")


def test_structured_specs_print_briefly_and_as_json() -> None:
    assert str(NESTED) == "Dict(eye: Tuple(Box(2), Discrete(3)), ear: MultiDiscrete[2, 4])"
    assert str(BehaviorSpec(box(1), discrete(2), mask_size=2)) == "obs Box(1), action Discrete(2) with masks"
    described = json.loads(json.dumps(BehaviorSpec(NESTED, discrete(2)).to_dict(), allow_nan=False))["obs"]
    assert described["type"] == "dict"
    assert [below["type"] for below in described["entries"]["eye"]["entries"]] == ["box", "discrete"]
    assert described["entries"]["ear"] == {
        "type": "multi_discrete", "nvec": [2, 4], "starts": [], "env_shape": [], "characters": ""
    }  # fmt: skip


def test_the_choices_of_an_action_are_listed_in_the_order_of_its_leaves() -> None:
    assert discrete_sizes(NESTED) == (3, 2, 4)
    assert discrete_sizes(box(3)) == ()


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        *(
            ((84, 84, 3), True),
            ((4, 84, 84), True),
            ((7, 7, 1), True),
            ((10, 10), False),
            ((6, 6, 3), False),
            ((9,), False),
        ),
        *(((4, 84, 84, 3), True), ((4, 3, 84, 84), True), ((2, 8, 8, 1), True), ((4, 6, 6, 3), False)),
        *(((4, 84, 84, 5), False), ((2, 4, 84, 84, 3), False), ((10, 10, 10, 10), False)),
    ],
)
def test_images_have_height_width_and_channels(shape: tuple[int, ...], expected: bool) -> None:
    assert box(*shape).is_image == expected


class TestLargeImages:
    SPEC = BehaviorSpec(box(210, 160, 3, low=0.0, high=255.0, dtype="uint8"), discrete(6))

    def test_equal_bounds_stand_in_files_once(self) -> None:
        words = self.SPEC.to_dict()
        assert (words["obs"]["low"], words["obs"]["high"]) == ([0.0], [255.0])
        assert spec_from_dict(words) == self.SPEC

    def test_files_that_have_all_of_them_are_of_the_same_space(self) -> None:
        words = self.SPEC.to_dict()
        words["obs"] |= {"low": [0.0] * 100_800, "high": [255.0] * 100_800}
        assert spec_from_dict(words) == self.SPEC
        require_same_specs({"default": self.SPEC}, {"behaviors": {"default": words}})
        words["obs"]["high"][7] = 254.0
        with pytest.raises(CheckpointIncompatible):
            require_same_specs({"default": self.SPEC}, {"behaviors": {"default": words}})

    def test_a_file_cannot_ask_for_a_space_without_end(self) -> None:
        words = self.SPEC.to_dict()
        words["obs"]["shape"] = [10**6, 10**6]
        with pytest.raises(ValueError, match="more than"):
            spec_from_dict(words)
