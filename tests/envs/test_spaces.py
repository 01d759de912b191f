"""Spaces become specs, and each space that cannot is refused with a sentence that says what to do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from quintain.data.spec import DiscreteSpec, box
from quintain.envs.spaces import behavior_spec
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
    "space",
    [
        spaces.Discrete(5),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": OBS}),
        spaces.Tuple((OBS,)),
        spaces.Text(4),
    ],
    ids=lambda space: type(space).__name__,
)
def test_other_observations_are_refused(space: Any) -> None:
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("Maze-v0", space, ACTION)
    assert refused.value.exit_code == 2
    assert refused.value.code == "E0513"
    assert refused.value.message.startswith(f"env 'Maze-v0' has a {type(space).__name__}")
    assert refused.value.message.endswith(
        "observation space; this version takes Box observations. Wrap it with gymnasium.wrappers.FlattenObservation"
    )


@pytest.mark.parametrize(
    "space",
    [
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(3),
        spaces.Dict({"a": ACTION}),
        spaces.Tuple((ACTION,)),
        spaces.Box(0, 5, (2,), np.int64),
    ],
    ids=lambda space: type(space).__name__,
)
def test_other_actions_are_refused(space: Any) -> None:
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("Maze-v0", OBS, space)
    assert refused.value.message.startswith(f"env 'Maze-v0' has a {type(space).__name__}")
    assert refused.value.message.endswith("action space; this version takes Discrete and float Box actions")


def test_empty_spaces_are_refused() -> None:
    with pytest.raises(SpecMismatch, match=r"empty observation space .* needs at least one number"):
        behavior_spec("env", spaces.Box(0, 1, (0,), np.float32), ACTION)
    with pytest.raises(SpecMismatch, match=r"empty action space .* needs at least one number"):
        behavior_spec("env", OBS, spaces.Box(0, 1, (2, 0), np.float32))

    class Discrete(SimpleNamespace):
        """Gymnasium itself refuses Discrete(0); another library's space may not."""

    with pytest.raises(SpecMismatch, match=r"empty action space .* needs at least one action"):
        behavior_spec("env", OBS, Discrete(n=0, start=0))


def test_a_space_with_a_long_name_does_not_fill_the_line() -> None:
    many = spaces.Dict({f"part_{i}": OBS for i in range(30)})
    with pytest.raises(SpecMismatch) as refused:
        behavior_spec("env", many, ACTION)
    assert len(refused.value.message) < 200
