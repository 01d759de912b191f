"""Signs the runs that this user made on this machine: HMAC-SHA256 with a key that only the user can read.

The key lies outside of every run, and is made when the first run is signed. It enters no run directory, log or message.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from quintain.services.files import atomic

KEY_FILE = "run-key"

_KEY = re.compile(rb"[0-9a-f]{64}\n")
_MARK = "# signature "
_SIGNED = re.compile(rf"(?P<text>.*\n){re.escape(_MARK)}(?P<signature>[0-9a-f]{{64}})\n", re.DOTALL)


class NoKey(Exception):
    """The reason why there is no trusted key."""


def key_path() -> Path:
    """Returns the path of the user's key: in `$XDG_STATE_HOME/quintain`, or in `~/.local/state/quintain`."""
    # The XDG base directory specification wants a relative path to be ignored.
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        state = given if given.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise NoKey("no key can be kept: there is no home directory") from error
    return state / "quintain" / KEY_FILE


def sign(kind: str, data: bytes) -> str | None:
    """Returns the signature of one kind of contents, or None if no key can be stored."""
    try:
        key = _read(key_path()) or _create(key_path())
    except NoKey:
        return None
    return _signature(key, kind, data)


def doubt_about(kind: str, data: bytes, signature: str | None) -> str | None:
    """Returns why a signature does not prove that this user made the contents; None if it does."""
    try:
        key = _read(key_path()) or _create(key_path())
    except NoKey as error:
        return f"cannot be known as yours ({error})"
    if signature is None:
        return "is not signed"
    if not hmac.compare_digest(_signature(key, kind, data), signature):
        return "was changed, or made by another user or on another machine"
    return None


def signed_text(kind: str, text: str) -> str:
    """Returns a text with its signature in a comment at the end; the text alone if no key can be stored."""
    signature = sign(kind, text.encode())
    return text if signature is None else f"{text}{_MARK}{signature}\n"


def doubt_about_text(kind: str, text: str) -> str | None:
    """Returns why the comment at a text's end does not prove that this user made it; None if it does."""
    found = _SIGNED.fullmatch(text)
    return doubt_about(kind, (found["text"] if found else text).encode(), found["signature"] if found else None)


def _signature(key: bytes, kind: str, data: bytes) -> str:
    return hmac.new(key, f"quintain-{kind}-1\n".encode() + data, hashlib.sha256).hexdigest()


def _read(path: Path) -> bytes | None:
    """Returns the key, or None; a key that other users could read or have made is not trusted."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NoKey(f"the key {path} cannot be read: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise NoKey(f"the key {path} is not a file of yours; remove it")
        if found.st_mode & 0o077:
            raise NoKey(f"the key {path} can be read by others (mode {stat.S_IMODE(found.st_mode):o}); remove it")
        data = os.read(fd, 66)
    finally:
        os.close(fd)
    if not _KEY.fullmatch(data):
        raise NoKey(f"the key {path} is damaged; remove it")
    return bytes.fromhex(data.decode())


def _create(path: Path) -> bytes:
    """Creates the key atomically; concurrent processes all use the first one."""
    temporary = path.with_name(f"{atomic.TEMPORARY_PREFIX}{KEY_FILE}-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        atomic.make_directory(path.parent)
        try:
            atomic.create_file(temporary, f"{secrets.token_hex(32)}\n".encode())
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise NoKey(f"no key can be kept in {path.parent}: {error.strerror}") from error
    key = _read(path)
    if key is None:
        raise NoKey(f"no key can be kept in {path.parent}")
    return key
