"""Signatures: the key only its owner can read, and what happens where there is none to trust."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quintain.services import signatures
from quintain.services.files import atomic


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for state in which there is no key yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def key_file(state: Path) -> Path:
    return state / "quintain" / "run-key"


class TestKey:
    def test_it_is_made_with_the_first_signature_for_its_owner_alone(self, state: Path) -> None:
        signature = signatures.sign("config", b"text")
        assert stat.S_IMODE(key_file(state).stat().st_mode) == 0o600
        assert stat.S_IMODE(key_file(state).parent.stat().st_mode) == 0o700
        assert os.listdir(key_file(state).parent) == ["run-key"]
        # By the standard library alone: HMAC-SHA256 over the kind and the contents.
        key = bytes.fromhex(key_file(state).read_text().strip())
        assert len(key) == 32
        assert signature == hmac.new(key, b"quintain-config-1\ntext", hashlib.sha256).hexdigest()

    def test_it_is_kept(self, state: Path) -> None:
        first = signatures.sign("config", b"text")
        assert signatures.sign("config", b"text") == first
        assert signatures.doubt_about("config", b"text", first) is None

    def test_processes_that_begin_together_make_one_key(self, state: Path) -> None:
        code = "from quintain.services import signatures as s; print(s.sign('a', b'b'))"
        begun = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(4)]
        signed = {process.communicate()[0] for process in begun}
        assert len(signed) == 1
        assert os.listdir(key_file(state).parent) == ["run-key"]

    def test_of_two_that_make_one_at_once_the_first_wins(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        create = atomic.create_file

        def create_late(path: Path, data: bytes) -> None:
            monkeypatch.setattr(atomic, "create_file", create)
            signed.append(signatures.sign("a", b"b"))
            create(path, data)

        signed: list[str | None] = []
        monkeypatch.setattr(atomic, "create_file", create_late)
        signed.append(signatures.sign("a", b"b"))
        assert signed[0] is not None
        assert signed[0] == signed[1]

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
    def test_one_that_others_can_read_is_not_trusted(self, state: Path, mode: int) -> None:
        signature = signatures.sign("config", b"text")
        key_file(state).chmod(mode)
        assert signatures.sign("config", b"text") is None
        doubt = signatures.doubt_about("config", b"text", signature)
        assert doubt is not None
        assert f"can be read by others (mode {mode:o})" in doubt

    def test_one_of_another_owner_is_not_trusted(self, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        signature = signatures.sign("config", b"text")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert signatures.sign("config", b"text") is None
        assert "not a file of yours" in str(signatures.doubt_about("config", b"text", signature))

    def test_neither_is_a_link_to_one_nor_a_pipe(self, state: Path, tmp_path: Path) -> None:
        signature = signatures.sign("config", b"text")
        key_file(state).rename(tmp_path / "elsewhere")
        key_file(state).symlink_to(tmp_path / "elsewhere")
        assert signatures.doubt_about("config", b"text", signature) is not None
        key_file(state).unlink()
        os.mkfifo(key_file(state), 0o600)
        assert signatures.sign("config", b"text") is None

    def test_a_short_one_is_not_replaced(self, state: Path) -> None:
        signatures.sign("config", b"text")
        key_file(state).write_bytes(b"0" * 10)
        assert "damaged" in str(signatures.doubt_about("config", b"text", "0" * 64))
        assert key_file(state).read_bytes() == b"0" * 10

    def test_where_none_can_be_kept_nothing_is_signed_and_the_reason_is_told(
        self, state: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: Path) -> None:
            raise OSError(errno.EROFS, "Read-only file system")

        monkeypatch.setattr(atomic, "make_directory", refuse)
        assert signatures.sign("config", b"text") is None
        doubt = str(signatures.doubt_about("config", b"text", None))
        assert f"no key can be kept in {state / 'quintain'}: Read-only file system" in doubt

    def test_a_relative_place_is_not_used(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "state")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert signatures.key_path() == tmp_path / ".local" / "state" / "quintain" / "run-key"


class TestSignature:
    def test_other_contents_another_kind_and_another_key_are_seen(
        self, state: Path, tmp_path: Path, monkeypatch
    ) -> None:
        signature = signatures.sign("config", b"text")
        assert signatures.doubt_about("config", b"texts", signature) is not None
        assert signatures.doubt_about("checkpoint", b"text", signature) is not None
        assert signatures.doubt_about("config", b"text", None) == "is not signed"
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another"))
        assert "made by another user" in str(signatures.doubt_about("config", b"text", signature))

    def test_of_a_text_stands_at_its_end(self, state: Path) -> None:
        signed = signatures.signed_text("config", "seed: 1\n")
        assert signed.startswith("seed: 1\n# signature ")
        assert signatures.doubt_about_text("config", signed) is None
        for other in ("seed: 1\n", signed.replace("1", "2", 1), signed + "run: {}\n", signed + signed):
            assert signatures.doubt_about_text("config", other) is not None, other
