"""Specs say the same to people, to JSON and to arrays."""

from __future__ import annotations

import json

import numpy as np

from quintain.data.spec import BehaviorSpec, box, discrete


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
