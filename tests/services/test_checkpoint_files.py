from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

from quintain.errors import (
    CheckpointError,
    CheckpointIncompatible,
    CheckpointNotFound,
)
from quintain.services.checkpoints import files as checkpoint_files
from quintain.services.checkpoints import manager as checkpoints
from quintain.services.checkpoints.manager import CheckpointManager
from tests.services.samples import (
    committed,
    flip_bit,
    names_in,
    never,
    state_at,
)


def replace(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def reseal(directory: Path) -> None:
    """Writes a manifest that fits the files, as an attacker would."""
    old = checkpoint_files.parse_manifest((directory / "manifest.json").read_bytes())
    names = ("state.safetensors", "state.json")
    files = {name: checkpoint_files.FileRecord.of((directory / name).read_bytes()) for name in names}
    manifest = checkpoint_files.Manifest(old.commit, old.step, old.is_best, old.digest, files, old.about)
    (directory / "manifest.json").write_bytes(manifest.render())


DAMAGES = {
    "truncated": (
        lambda d: os.truncate(d / "state.safetensors", 20),
        "state.safetensors: 20 bytes, expected",
    ),
    "empty": (lambda d: os.truncate(d / "manifest.json", 0), "manifest.json: not JSON"),
    "missing tensors": (lambda d: (d / "state.safetensors").unlink(), "state.safetensors: missing"),
    "missing manifest": (lambda d: (d / "manifest.json").unlink(), "manifest.json: missing"),
    "extra": (lambda d: replace(d / "notes.txt", b""), "'notes.txt': not in the manifest"),
    "longer": (lambda d: replace(d / "state.json", b"{}" * 999), "state.json: 1998 bytes, expected"),
    "a directory": (
        lambda d: [(d / "state.json").unlink(), (d / "state.json").mkdir()],
        "not a regular file",
    ),
    "a pipe": (
        lambda d: [(d / "manifest.json").unlink(), os.mkfifo(d / "manifest.json")],
        "not a regular file",
    ),
    "hard link": (lambda d: os.link(d / "state.json", d.parent / "other"), "state.json: has 2 hard links"),
    "symlink": (
        lambda d: [(d / "state.json").rename(d.parent / "s"), (d / "state.json").symlink_to(d.parent / "s")],
        "state.json: not a regular file",
    ),
    "symlinked manifest": (
        lambda d: [
            (d / "manifest.json").rename(d.parent / "m"),
            (d / "manifest.json").symlink_to(d.parent / "m"),
        ],
        "manifest.json: not a regular file",
    ),
    "huge manifest": (
        lambda d: os.truncate(d / "manifest.json", 2_000_000),
        "2000000 bytes is above the limit",
    ),
    "huge document": (
        lambda d: os.truncate(d / "state.json", 65_000_000),
        "65000000 bytes is above the limit",
    ),
    "deep manifest": (lambda d: replace(d / "manifest.json", b"[" * 100_000), "manifest.json: not JSON"),
}


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGES)
    def test_is_found_quarantined_and_reported(self, tmp_path: Path, kind: str) -> None:
        damage, reason = DAMAGES[kind]
        manager = committed(tmp_path / "c", 1, 2)
        path = tmp_path / "c" / "000002-step-2"
        damage(path)
        with pytest.raises(CheckpointError, match="000002-step-2") as caught:
            checkpoints.load(path)
        assert caught.value.code == "E0401"
        assert reason in caught.value.message
        assert [(entry.step, entry.valid) for entry in manager.entries()] == [(1, True), (2, False)]

        notices: list[str] = []
        assert manager.latest(notices.append).step == 1
        assert path.exists(), "only the sweep may move it"
        (warning,) = manager.sweep()
        assert warning.startswith("warning[W0401]: checkpoint 000002-step-2 is damaged (")
        assert reason in warning
        assert warning.endswith("; using 000001-step-1. Damaged copy kept as .bad-000002-step-2")
        assert warning.startswith(notices[0])
        assert manager.latest(never).step == 1
        assert manager.commit(state_at(3), step=3, about={}).commit == 3

    @pytest.mark.slow
    def test_every_flipped_bit_is_found(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1)
        (path,) = manager.paths()
        for file in sorted(path.iterdir()):
            original = file.read_bytes()
            for bit in range(0, len(original) * 8, 3):
                flip_bit(file, bit)
                try:
                    checkpoints.verify(path)
                except CheckpointError:
                    pass
                else:  # another signature: the contents are sound, and no longer taken for this user's
                    assert file.name == "manifest.json"
                    assert checkpoint_files.parse_manifest(file.read_bytes()).doubt() is not None
                file.write_bytes(original)
        checkpoints.verify(path)

    @pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors"])
    def test_mixed_from_two_is_found(self, tmp_path: Path, name: str) -> None:
        committed(tmp_path, 1, 2)
        shutil.copy(tmp_path / "000001-step-1" / name, tmp_path / "000002-step-2" / name)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.verify(tmp_path / "000002-step-2")
        assert caught.value.code == "E0401"

    def test_a_copy_under_another_number_is_found(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1)
        shutil.copytree(tmp_path / "000001-step-1", tmp_path / "000002-step-9")
        assert [(entry.step, entry.valid) for entry in manager.entries()] == [(1, True), (9, False)]

    def test_a_copy_elsewhere_is_as_good(self, tmp_path: Path) -> None:
        committed(tmp_path / "c", 4)
        shutil.copytree(tmp_path / "c" / "000001-step-4", tmp_path / "shared")
        assert checkpoints.verify(tmp_path / "shared").step == 4

    def test_none_left_is_an_error_not_a_fresh_start(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1, 2)
        for path in manager.paths():
            (path / "state.json").unlink()
        with pytest.raises(CheckpointNotFound, match=r"no usable checkpoint in .* \(2 damaged; see \.bad-\*\)"):
            manager.latest(never)
        assert len(manager.sweep()) == 2
        with pytest.raises(CheckpointNotFound, match="2 damaged") as caught:
            manager.latest(never)
        assert (caught.value.code, caught.value.exit_code) == ("E0402", 4)

    def test_what_another_version_wrote_is_refused_and_not_moved(self, tmp_path: Path) -> None:
        manager = committed(tmp_path, 1)
        path = manager.commit(state_at(2), step=2, about={}).path
        newer = dataclasses.replace(checkpoint_files.read_manifest(path), schema=3)
        (path / checkpoint_files.MANIFEST).write_bytes(newer.render())
        with pytest.raises(CheckpointIncompatible, match="schema 3, this version reads up to 2") as caught:
            manager.latest(never)
        assert caught.value.code == "E0405"
        assert manager.sweep() == []
        assert names_in(tmp_path) == ["000001-step-1", "000002-step-2"]

    def test_what_cannot_be_read_now_is_not_called_damaged(self, tmp_path: Path, monkeypatch) -> None:
        manager = committed(tmp_path, 1)
        monkeypatch.setattr(os, "pread", lambda *a: (_ for _ in ()).throw(OSError(errno.EIO, "bad disk")))
        assert manager.sweep() == []
        with pytest.raises(CheckpointError, match="cannot be read") as caught:
            manager.latest(never)
        assert caught.value.code == "E0409"


class TestHostileFiles:
    """Files whose manifest fits: only the parsers' own limits stand between them and the process."""

    @pytest.mark.parametrize(
        ("tensors", "reason"),
        [
            (struct.pack("<Q", 2**63) + b"{}", "header does not fit"),
            (struct.pack("<Q", 500) + b"{}      ", "header does not fit"),
            (b"\x02", "header does not fit"),
            (struct.pack("<Q", 8) + b"[[[[[[[[", "state.safetensors"),
        ],
    )
    def test_header(self, tmp_path: Path, tensors: bytes, reason: str) -> None:
        self.check(tmp_path, "state.safetensors", tensors, reason)

    @pytest.mark.parametrize(
        "info",
        [
            {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]},
            {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**40]},
            {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        ],
        ids=["shape", "offsets", "dtype"],
    )
    def test_tensor_that_lies(self, tmp_path: Path, info: dict) -> None:
        header = json.dumps({"training/policy/weight": info}).encode()
        self.check(tmp_path, "state.safetensors", struct.pack("<Q", len(header)) + header + bytes(4), "safetensors")

    @pytest.mark.parametrize(
        ("document", "reason"),
        [
            (b"[" * 100_000, "state.json"),
            (b'{"training":' * 80 + b"{}" + b"}" * 80, "64 levels"),
            (b'{"training": {"x": NaN}}', "NaN is not JSON"),
            (b'{"training": {"x": ' + b"9" * 5000 + b"}}", "state.json"),
            (b'{"training": []}', "not an object"),
            (b'{"other": {}}', "expected the subtrees"),
            (b'{"training": {}}', "'training/policy/weight' is not in the tree"),
            (
                b'{"training": {"policy": {"weight": {"$": "tensor"}, "bias": {"$": "tensor"}}}}',
                "training/policy/bias",
            ),
            (b'{"training": {"policy": {"weight": {"$": "tensor", "x": 1}}}}', "beside other keys"),
            (b'{"training": {"policy": {"weight": {"$": ["tensor"]}}}}', "mark"),
            (b"\xff\xfe", "state.json"),
        ],
    )
    def test_document(self, tmp_path: Path, document: bytes, reason: str) -> None:
        self.check(tmp_path, "state.json", document, reason)

    def check(self, directory: Path, name: str, data: bytes, reason: str) -> None:
        (path,) = committed(directory, 1).paths()
        (path / name).write_bytes(data)
        reseal(path)
        with pytest.raises(CheckpointError) as caught:
            checkpoints.load(path)
        assert caught.value.code == "E0401"
        assert reason in caught.value.message

    @pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors", "policy.pt"])
    @pytest.mark.parametrize(
        "start",
        [b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}.", b"PK\x03\x04" + bytes(60)],
        ids=["pickle", "zip"],
    )
    def test_a_pickle_is_refused_as_one(self, tmp_path: Path, name: str, start: bytes) -> None:
        (path,) = committed(tmp_path, 1).paths()
        (path / name).write_bytes(start)
        with pytest.raises(CheckpointError, match="pickled checkpoints are never loaded") as caught:
            checkpoints.load(path)
        assert (caught.value.code, caught.value.exit_code) == ("E0406", 4)
        assert name in caught.value.message

    def test_a_pickle_as_the_path_is_refused(self, tmp_path: Path) -> None:
        for name, data in {
            "model.pt": b"anything",
            "model.bin": b"PK\x03\x04",
            "m": b"\x80\x02}q\x00.",
        }.items():
            (tmp_path / name).write_bytes(data)
            with pytest.raises(CheckpointError) as caught:
                checkpoints.load(tmp_path / name)
            assert caught.value.code == "E0406"

    def test_tensors_whose_header_length_spells_a_pickle_load(self, tmp_path: Path) -> None:
        # A header of 0x0480 bytes begins the file with 80 04, as a pickle of protocol 4 does.
        for length in range(900, 1152):
            state = {"training": {"x" * length: np.zeros(1)}}
            path = CheckpointManager(tmp_path, keep=2).commit(state, step=0, about={}).path
            if (path / "state.safetensors").read_bytes().startswith(b"\x80\x04"):
                break
        else:
            pytest.fail("no such header was met")
        assert list(checkpoints.load(path).state["training"]) == ["x" * length]
