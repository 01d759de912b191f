from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from quintain.errors import (
    CheckpointError,
    NonFiniteError,
)
from quintain.services.checkpoints import manager as checkpoints
from quintain.services.checkpoints.manager import CheckpointManager
from tests.services.samples import (
    committed,
    names_in,
)


class FakeTensor:
    """Looks like a torch tensor on another device, seen through a transposed view."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return self

    def numpy(self) -> np.ndarray:
        return self._values.T


class TestTree:
    def test_every_kind_of_leaf_comes_back_equal(self, tmp_path: Path) -> None:
        tree = {
            "none": None,
            "flags": [True, False],
            "whole": [0, -1, 2**63, -(2**63) - 1, 10**5000],
            "real": [0.1, -0.0, 5e-324, 1.7976931348623157e308],
            "text": ["", "a/b", "naïve \ud800 \x00"],
            "empty": {"dict": {}, "list": []},
            "a/b~c": {"$": 1, "$tensor": {"$$": 2}, "": 3},
        }
        checkpoint = CheckpointManager(tmp_path, keep=2).commit({"training": tree}, step=0, about={})
        loaded = checkpoints.load(checkpoint.path).state["training"]
        assert loaded == tree
        assert list(loaded) == list(tree)
        assert [type(x) for x in loaded["flags"]] == [bool, bool]
        assert np.signbit(loaded["real"][1])

    @pytest.mark.parametrize(
        "array",
        [
            np.array(True),
            np.array(2.5, np.float16),
            np.zeros((0, 3), np.float32),
            np.array([[1, 2], [3, 4]], np.int64).T,
            np.array([1, 2], ">i4"),
            np.array([1 + 2j], np.complex64),
            np.array([255], np.uint8),
        ],
        ids=lambda array: f"{array.dtype}{array.shape}",
    )
    def test_arrays_come_back_with_shape_and_values_and_can_be_written_to(
        self, tmp_path: Path, array: np.ndarray
    ) -> None:
        state = {"training": {"a/b": [array]}}
        loaded = checkpoints.load(CheckpointManager(tmp_path, keep=2).commit(state, step=0, about={}).path).state
        back = loaded["training"]["a/b"][0]
        assert back.shape == array.shape
        assert back.dtype == array.dtype.newbyteorder("=")
        assert np.array_equal(back, array)
        back[...] = 0

    def test_tensors_are_taken_by_their_detach_method(self, tmp_path: Path) -> None:
        state = {"training": {"w": FakeTensor(np.array([[1.0, 2.0], [3.0, 4.0]]))}}
        checkpoint = CheckpointManager(tmp_path, keep=2).commit(state, step=0, about={})
        assert checkpoints.load(checkpoint.path).state["training"]["w"].tolist() == [[1.0, 3.0], [2.0, 4.0]]

    def test_numpy_scalars_become_plain(self, tmp_path: Path) -> None:
        state = {"training": {"x": [np.float32(0.1), np.int8(-3), np.bool_(True)]}}
        loaded = checkpoints.load(CheckpointManager(tmp_path, keep=2).commit(state, step=0, about={}).path)
        # 0.1 as a float32 is 13421773 / 2**27.
        assert loaded.state["training"]["x"] == [13421773 / 2**27, -3, True]

    @pytest.mark.parametrize(
        ("leaf", "path"),
        [
            (float("nan"), "training/x/0"),
            (float("-inf"), "training/x/0"),
            (np.array([[0.0, np.inf]], np.float32), r"training/x/0: found inf at index \(0, 1\)"),
            (np.array(np.nan), "training/x/0"),
        ],
        ids=["nan", "-inf", "tensor", "0-d"],
    )
    def test_nonfinite_is_never_committed(self, tmp_path: Path, leaf: object, path: str) -> None:
        manager = committed(tmp_path, 1)
        with pytest.raises(NonFiniteError, match=path) as caught:
            manager.commit({"training": {"x": [leaf]}}, step=2, about={})
        assert (caught.value.code, caught.value.exit_code) == ("E0606", 6)
        assert names_in(tmp_path) == ["000001-step-1"]

    def test_nonfinite_is_kept_where_the_caller_allows_it(self, tmp_path: Path) -> None:
        manager = CheckpointManager(tmp_path, keep=2)
        tree = {"best": float("-inf"), "bestial": 1.0, "low": {"a": np.array([-np.inf])}}
        allowed = ["records/best", "records/low"]
        state = {"training": {}, "records": tree}
        checkpoint = manager.commit(state, step=0, about={}, allow_nonfinite=allowed)
        assert checkpoints.load(checkpoint.path).state["records"]["best"] == float("-inf")
        tree["bestial"] = float("nan")
        with pytest.raises(NonFiniteError, match="records/bestial"):
            manager.commit(state, step=1, about={}, allow_nonfinite=allowed)

    @pytest.mark.parametrize(
        "tree",
        [
            {"x": {1, 2}},
            {"x": (1, 2)},
            {1: 2},
            {"x": 1j},
            {"x": np.array(["a"])},
            {"x": np.zeros(1, np.complex128)},
        ],
        ids=["set", "tuple", "int key", "complex", "strings", "complex128"],
    )
    def test_what_could_not_come_back_equal_is_refused(self, tmp_path: Path, tree: dict) -> None:
        with pytest.raises(CheckpointError, match="training/") as caught:
            CheckpointManager(tmp_path, keep=2).commit({"training": tree}, step=0, about={})
        assert caught.value.code == "E0408"

    def test_a_tree_too_deep_to_load_is_not_written(self, tmp_path: Path) -> None:
        tree: dict = {}
        for _ in range(70):
            tree = {"x": tree}
        with pytest.raises(CheckpointError, match="64 levels"):
            CheckpointManager(tmp_path, keep=2).commit({"training": tree}, step=0, about={})


class TestDigest:
    def test_is_the_documented_hash(self, tmp_path: Path) -> None:
        state = {"training": {"w": np.array([1, 2], np.float32), "n": 3}, "records": {"x": 4}}
        by_hand = hashlib.sha256(
            b"quintain-state-1\n"
            b'["training/w","float32",[2]]\n' + struct.pack("<2f", 1, 2) + b'{"n":3,"w":{"$":"tensor"}}\n'
        ).hexdigest()
        checkpoint = CheckpointManager(tmp_path, keep=2).commit(state, step=0, about={})
        assert checkpoints.digest_of(state) == by_hand
        assert checkpoints.digest(checkpoint.path) == by_hand
        assert checkpoint.digest == by_hand

    def test_depends_on_training_only(self) -> None:
        base = {"training": {"a": 1, "w": np.zeros((2, 3))}, "records": {"seconds": 1.0}}
        same = {"records": {"seconds": 2.0}, "training": {"w": np.zeros((2, 3)), "a": 1}}
        assert checkpoints.digest_of(base) == checkpoints.digest_of(same)

    @pytest.mark.parametrize(
        "training",
        [
            {"a": 1.0, "w": np.zeros((2, 3))},
            {"a": True, "w": np.zeros((2, 3))},
            {"a": 1, "w": np.zeros((3, 2))},
            {"a": 1, "w": np.zeros((2, 3), np.int64)},
            {"a": 1, "v": np.zeros((2, 3))},
            {"a": 1, "w": -np.zeros((2, 3))},
            {"a": 1, "w": np.zeros((2, 3)), "b": None},
        ],
    )
    def test_sees_every_difference(self, training: dict) -> None:
        base = {"training": {"a": 1, "w": np.zeros((2, 3))}}
        assert checkpoints.digest_of(base) != checkpoints.digest_of({"training": training})
